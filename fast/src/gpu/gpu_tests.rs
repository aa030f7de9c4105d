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
    for seed in [0, 1] {
        let Some(gpu) = emulator(seed) else { return };
        let reports = parity(&gpu).unwrap_or_else(|e| panic!("{e}"));
        let wrong: Vec<_> = reports.iter().filter(|r| !r.bitwise_equal).collect();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
        let without: Vec<_> = KERNELS.iter().map(|k| k.name).filter(|name| reports.iter().all(|r| r.name != *name)).collect();
        assert!(without.is_empty(), "kernels that nothing compares: {without:?}");
    }
}

/// Each fault is planted in the emulator's C++ and must be seen, as a rule broken or as a bit that differs.
#[test]
fn planted_faults_are_seen() {
    if emulator(0).is_none() {
        return;
    }
    type Section = fn(&mut parity::Cases) -> Result<(), GpuError>;
    const STORED: &str = "lanes[thread_index] = lane_sum;\n  threadgroup_barrier(mem_flags::mem_threadgroup);\n";
    const EARLY: &str = "if (thread_index >= 64u) return 0.0f;\n  lanes[thread_index] = lanes";
    let faults: [(&str, &str, &str, Section); 11] = [
        ("a barrier is missing", STORED, "lanes[thread_index] = lane_sum;\n", |c| c.norms()),
        ("some threads miss a barrier", "if (thread_index < 64u) lanes[thread_index] = lanes", EARLY, |c| c.norms()),
        ("an array is too short", "rt::shared<float[FOLD_THREADS]>", "rt::shared<float[FOLD_THREADS - 4]>", |c| c.norms()),
        ("an ancestor is skipped", "row = parents[row];", "row = parents[row] > 0 ? parents[parents[row]] : -1;", |c| {
            c.convolution()
        }),
        ("one thread too many", "if (i >= a.rows * a.dim) return;", "if (i > a.rows * a.dim) return;", |c| c.elementwise()),
        ("a branch begins at the committed state", "source == GDN_COMMITTED ? state + cell :", "true ? state + cell :", |c| {
            c.delta_rule()
        }),
        (
            "a key of the ancestor before",
            "list[seen + thread_index];",
            "list[seen + (thread_index > cached ? thread_index - 1u : thread_index)];",
            |c| c.attention(),
        ),
        ("a zero point is left out", "to[r] = 0 - zero * sums[r][group];", "to[r] = 0;", |c| c.coded()),
        ("codes are cut instead of rounded", "int(rounded)", "int(v[half_group] * inverse)", |c| c.activations()),
        ("ties go to the highest id", "a.value == b.value && a.id < b.id", "a.value == b.value && a.id > b.id", |c| c.choices()),
        ("noise of the position before", "position_low, c2 = position_high", "position_low - 1u, c2 = position_high", |c| {
            c.sampling()
        }),
    ];
    for (fault, sound, planted, section) in faults {
        assert!(Emulator::source().contains(sound), "{fault}: the shaders no longer say {sound:?}");
        let source = Emulator::source().replace(sound, planted);
        let gpu = Gpu::Emulator(Emulator::from_source(&source, 1).unwrap());
        let mut cases = parity::Cases::new(&gpu);
        let seen = section(&mut cases).is_err() || cases.reports.iter().any(|r| !r.bitwise_equal);
        assert!(seen, "{fault}: nobody saw it");
    }
}

#[test]
fn an_output_that_is_bound_as_an_input_is_seen() {
    let Some(gpu) = emulator(0) else { return };
    let (x, delta) = (gpu.upload(&[1.0f32; 4]).unwrap(), gpu.upload(&[1.0f32; 4]).unwrap());
    let a = AddArgs { len: 4, period: 4 };
    let kernel = KERNELS.iter().find(|k| k.name == "add").unwrap();
    let wrong = [x.input().bound("x"), delta.input().bound("delta"), Bound::constant(&a)];
    let error = gpu.dispatch(kernel, &wrong, [1, 1, 1], 32).unwrap_err().to_string();
    assert!(error.contains("a write to x"), "{error}");
}
