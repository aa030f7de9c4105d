use super::*;

/// The emulator, or nothing where there is no clang++ and nobody demands it.
pub(crate) fn emulator(seed: u32) -> Option<Gpu> {
    match Gpu::emulator(seed) {
        Ok(gpu) => Some(gpu),
        Err(e @ GpuError::Absent { .. }) if std::env::var_os("STRAW_REQUIRE_EMULATOR").is_none() => {
            println!("not compared here: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn memory_returns_what_was_written() {
    let Some(gpu) = emulator(0) else { return };
    let array = gpu.upload(&[1.0f32, 2.0, 3.0]).unwrap();
    gpu.write(&array, 1, &[5.0]).unwrap();
    assert_eq!(gpu.read(&array, 0, 3).unwrap(), [1.0, 5.0, 3.0]);
    assert_eq!(gpu.read(&gpu.alloc::<u16>(3).unwrap(), 0, 3).unwrap(), [0, 0, 0]);
}

#[test]
fn every_lane_order_gives_the_processors_bits() {
    for seed in [0, 1, 2] {
        let Some(gpu) = emulator(seed) else { return };
        let reports = parity(&gpu).unwrap_or_else(|e| panic!("{e}"));
        let wrong: Vec<_> = reports.iter().filter(|r| !r.bitwise_equal).collect();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    }
}
