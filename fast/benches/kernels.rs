//! Microbenchmarks of the kernels, named stage/shape/rows. Shapes: straw-tiny (hidden 512, MLP 1536, vocabulary 8192) and
//! Qwen3.5-0.8B (hidden 1024, MLP 3584). All cores; throughput in bytes of weights for linear, in elements elsewhere.
//! `memory/read` is what one row could reach at most: the sum of a buffer larger than any cache.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fast::kernels::{
    Activations, KvCache, KvShape, KvType, Layout, Mask, Packed, Pool, Signs, Walk, attention, gdn, linear, norm, reduce, rope,
};
use half::bf16;
use specdec::GdnDims;
use std::hint::black_box;
use std::time::Duration;

const ROWS: [usize; 5] = [1, 4, 8, 16, 32];

fn numbers(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 * 2f32.powi(-24) - 0.5).collect()
}

fn packed(storage: &str, outputs: usize, inputs: usize) -> Packed {
    let w = numbers(outputs * inputs);
    let bf16s = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
    match storage {
        "f32" => Packed::from_f32(&w, outputs, inputs),
        "bf16" => Packed::from_bf16(&bf16s(&w), outputs, inputs),
        "l" => {
            let codes: Vec<i8> = w.iter().map(|w| (w * 254.0) as i8).collect();
            Packed::from_l(&codes, &bf16s(&w[..outputs * inputs / 64]), (outputs, inputs), 64, Some(&signs(inputs)))
        }
        "m" => {
            let codes: Vec<u8> = w[..outputs * inputs / 2].iter().map(|w| (w * 254.0) as i8 as u8).collect();
            let zeros = &codes[..outputs * (inputs / 64).div_ceil(2)];
            let scales = bf16s(&w[..outputs * inputs / 64]);
            Packed::from_m((&codes, &scales, zeros), (outputs, inputs), 64, Some(&signs(inputs)))
        }
        _ => {
            let codes: Vec<i8> = w.iter().map(|w| (w * 254.0) as i8).collect();
            Packed::from_q8(&codes, &bf16s(&w[..outputs * inputs / 64]), (outputs, inputs), 64)
        }
    }
    .expect("the shapes are right")
}

fn signs(inputs: usize) -> Signs {
    Signs::new(&specdec::hadamard::signs(inputs)).expect("signs are 1 or -1")
}

fn memory(c: &mut Criterion) {
    let mut group = c.benchmark_group("memory/read");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let words: Vec<u64> = (0..24u64 << 20).collect();
    group.throughput(Throughput::Bytes(8 * words.len() as u64));
    group.bench_function("192MiB", |b| {
        b.iter(|| {
            std::thread::scope(|s| {
                for part in words.chunks(words.len() / threads) {
                    s.spawn(move || black_box(part.iter().fold(0u64, |sum, w| sum.wrapping_add(*w))));
                }
            })
        });
    });
}

fn linears(c: &mut Criterion) {
    let pool = Pool::new(0);
    // The last is the whole 0.8B model's worth of a layer stack: it does not stay in a cache.
    for (outputs, inputs) in [(3072, 512), (8192, 512), (7168, 1024), (1024, 3584), (65536, 1024)] {
        for storage in ["f32", "bf16", "q8", "l", "m"] {
            let weights = packed(storage, outputs, inputs);
            let mut group = c.benchmark_group(format!("linear/{storage}-{outputs}x{inputs}"));
            group.throughput(Throughput::Bytes(weights.bytes() as u64));
            for rows in ROWS {
                let (x, mut y, mut scratch) = (numbers(rows * inputs), vec![0.0; rows * outputs], Activations::default());
                group.bench_function(BenchmarkId::from_parameter(rows), |b| {
                    b.iter(|| linear::linear(&pool, &weights, black_box(&x), rows, &mut y, &mut scratch));
                });
            }
        }
    }
}

/// Hadamard and 8-bit codes of activations; the way back from codes to floats that an embedding's look-up takes.
fn codes(c: &mut Criterion) {
    let pool = Pool::new(0);
    for inputs in [512, 3584] {
        let (signs, mut scratch) = (signs(inputs), Activations::default());
        for rows in ROWS {
            let x = numbers(rows * inputs);
            let mut group = c.benchmark_group(format!("hadamard-quantise/{inputs}"));
            group.throughput(Throughput::Elements(x.len() as u64));
            group.bench_function(BenchmarkId::from_parameter(rows), |b| {
                b.iter(|| _ = black_box(scratch.fill(&pool, black_box(&x), (rows, inputs), 64, Some(&signs))));
            });
            group.finish();
            for storage in ["l", "m"] {
                let table = packed(storage, 8192, inputs);
                let mut out = vec![0.0; inputs];
                let mut group = c.benchmark_group(format!("dequantise/{storage}-{inputs}"));
                group.throughput(Throughput::Elements((rows * inputs) as u64));
                group.bench_function(BenchmarkId::from_parameter(rows), |b| {
                    b.iter(|| (0..rows).for_each(|r| table.row(black_box(r * 211), &mut out)));
                });
            }
        }
    }
}

fn scans(c: &mut Criterion) {
    let pool = Pool::new(0);
    for (name, key_heads, value_heads) in [("tiny", 2, 4), ("0.8b", 16, 16)] {
        let dims = GdnDims { key_heads, value_heads, key_dim: 128, value_dim: 128, conv_kernel: 4 };
        let mut group = c.benchmark_group(format!("gdn-scan/{name}"));
        for rows in [1, 16, 32] {
            let (qkv, gates) = (numbers(rows * dims.conv_channels()), vec![0.9; rows * value_heads]);
            let keys = key_heads * 128;
            let (k, v, stride) = (&qkv[keys..], &qkv[2 * keys..], dims.conv_channels());
            let inputs = gdn::Inputs { q: &qkv, k, v, stride, alpha: &gates, beta: &gates };
            let mut walk = Walk::with_capacity(rows);
            walk.plan(&(0..rows).map(|r| (r > 0).then(|| (r - 1) / 2)).collect::<Vec<_>>());
            let (mut state, mut out) = (vec![0.0; dims.state_len()], vec![0.0; rows * value_heads * 128]);
            let mut scratch = vec![0.0; gdn::scratch_len(&pool, &dims, walk.slots())];
            group.bench_function(BenchmarkId::new("tree", rows), |b| {
                b.iter(|| gdn::verify(&pool, &dims, &state, inputs, &walk, &mut out, &mut scratch));
            });
            group.bench_function(BenchmarkId::new("chain", rows), |b| {
                b.iter(|| gdn::advance(&pool, &dims, &mut state, inputs, gdn::Rows::First(rows), Some(&mut out), &mut scratch));
            });
        }
    }
}

fn attentions(c: &mut Criterion) {
    let pool = Pool::new(0);
    for (name, heads, kv_heads, head_dim) in [("tiny", 4, 2, 128), ("0.8b", 8, 2, 256)] {
        for context in [1024, 8192] {
            for kv_type in [KvType::F32, KvType::Bf16] {
                let mut cache = KvCache::new(KvShape { heads: kv_heads, head_dim, capacity: context, staged: 32 }, kv_type);
                let kv = numbers(context * kv_heads * head_dim);
                cache.append(&kv, &kv, Layout::heads(context, kv_heads, head_dim));
                cache.stage(0, &kv, &kv, Layout::heads(32, kv_heads, head_dim));
                let mut group = c.benchmark_group(format!("attention/{name}-{context}-{kv_type:?}"));
                for rows in [1, 16, 32] {
                    let (q, at) = (numbers(rows * heads * head_dim), Layout::heads(rows, heads, head_dim));
                    let mut mask = Mask::default();
                    (0..rows).for_each(|r| mask.push(context, 0..=r));
                    let mut out = vec![0.0; q.len()];
                    let mut scratch = vec![0.0; attention::scratch_len(cache.shape(), heads, rows)];
                    group.bench_function(BenchmarkId::from_parameter(rows), |b| {
                        b.iter(|| attention::attend(&pool, &cache, black_box(&q), at, &mask, &mut out, &mut scratch));
                    });
                }
            }
        }
    }
}

fn small_ones(c: &mut Criterion) {
    let pool = Pool::new(0);
    let scale = numbers(1024);
    let table = rope::Table::new(4096, 64, 1e7);
    for rows in [1, 16, 32] {
        let (x, mut y) = (numbers(rows * 1024), vec![0.0; rows * 1024]);
        let norm = norm::Norm { scale: &scale, eps: 1e-6 };
        c.bench_function(&format!("norm/1024/{rows}"), |b| {
            b.iter(|| norm::rms_norm(&pool, black_box(&x), Layout::rows(rows, 1024), norm, &mut y));
        });
        let mut q = numbers(rows * 8 * 256);
        let positions: Vec<u32> = (0..rows as u32).collect();
        c.bench_function(&format!("rope/8x256/{rows}"), |b| {
            b.iter(|| table.apply(&pool, &mut q, Layout::heads(rows, 8, 256), &positions));
        });
        for vocabulary in [8192, 248_320] {
            let logits = numbers(rows * vocabulary);
            let (mut ids, mut sums, mut best) = (vec![0; rows], vec![0.0; rows], vec![(0, 0.0); 40]);
            c.bench_function(&format!("argmax/{vocabulary}/{rows}"), |b| {
                b.iter(|| reduce::argmax(&pool, black_box(&logits), vocabulary, &mut ids));
            });
            c.bench_function(&format!("log-sum-exp/{vocabulary}/{rows}"), |b| {
                b.iter(|| reduce::log_sum_exp(&pool, black_box(&logits), vocabulary, &mut sums));
            });
            if rows == 1 {
                c.bench_function(&format!("top-40/{vocabulary}/{rows}"), |b| {
                    b.iter(|| reduce::top_k(&pool, black_box(&logits), &mut best));
                });
            }
        }
    }
}

criterion_group! {
    name = kernels;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
    targets = memory, linears, codes, scans, attentions, small_ones
}
criterion_main!(kernels);
