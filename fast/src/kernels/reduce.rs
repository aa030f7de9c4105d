//! Reductions of a row of logits: the largest, the k largest, log-sum-exp. Equal values go to the lowest id; sums take
//! 128 lanes ([`super::fold`]). NaN never wins.

use super::flush::FlushGuard;
use super::fold::{Term, sum};
use super::lanes::{Kernel, Lanes};
use super::math::{exp_lanes, log};
use super::pool::{Disjoint, Pool};

/// Elements of one row below which a second thread costs more than it brings.
const GRAIN: usize = 1 << 13;

/// Index of the largest value of every row of `width`; ties, and rows without a number, go to the lowest.
///
/// # Panics
/// If a length is wrong; so do all functions here.
pub fn argmax(pool: &Pool, x: &[f32], width: usize, ids: &mut [u32]) {
    assert_eq!(x.len(), ids.len() * width, "one id per row of {width}");
    let out = Disjoint::new(ids);
    each(pool, x, width, |row, x| {
        let mut highest = f32::NEG_INFINITY;
        pool.vectorise(Maximum { x, highest: &mut highest });
        // SAFETY: each row belongs to one part.
        unsafe { out.slice(row, 1)[0] = x.iter().position(|&x| x == highest).unwrap_or(0) as u32 };
    });
}

/// `M + log(sum exp(x - M))` of every row of `width`, M its maximum.
pub fn log_sum_exp(pool: &Pool, x: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(x.len(), out.len() * width, "one result per row of {width}");
    let out = Disjoint::new(out);
    each(pool, x, width, |row, x| {
        let (mut highest, mut total) = (f32::NEG_INFINITY, 0.0);
        pool.vectorise(Maximum { x, highest: &mut highest });
        pool.vectorise(ExpSum { x, highest, total: &mut total });
        // SAFETY: each row belongs to one part.
        unsafe { out.slice(row, 1)[0] = highest + log(total) };
    });
}

/// The `out.len()` largest of a row with their ids, in falling order, equal values by rising id; at most the row's length.
/// NaN is left out. Returns how many were found.
pub fn top_k(pool: &Pool, x: &[f32], out: &mut [(u32, f32)]) -> usize {
    if out.is_empty() {
        return 0;
    }
    let _flush = FlushGuard::new();
    let mut found = 0;
    pool.vectorise(TopK { x, out, found: &mut found });
    out[..found].sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    // total_cmp parts -0 from 0, which are equal here: order such a run by id.
    for run in out[..found].chunk_by_mut(|a, b| a.1 == b.1) {
        run.sort_unstable_by_key(|c| c.0);
    }
    found
}

fn each<'a>(pool: &Pool, x: &'a [f32], width: usize, job: impl Fn(usize, &'a [f32]) + Sync) {
    assert!(width > 0, "rows have elements");
    pool.split(x.len() / width, GRAIN.div_ceil(width), |_, range| {
        range.for_each(|row| job(row, &x[row * width..][..width]));
    });
}

struct Maximum<'a> {
    x: &'a [f32],
    highest: &'a mut f32,
}

impl Kernel for Maximum<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let whole = self.x.len() - self.x.len() % (4 * L::WIDTH);
        // Room for the widest vectors; the order of a maximum does not matter.
        let mut lanes = [f32::NEG_INFINITY; 64];
        // SAFETY: the caller's promise; indices stay inside.
        unsafe {
            let mut best = [L::splat(f32::NEG_INFINITY); 4];
            for i in (0..whole).step_by(4 * L::WIDTH) {
                for (p, best) in best.iter_mut().enumerate() {
                    *best = L::load(self.x.as_ptr().add(i + p * L::WIDTH)).max(*best);
                }
            }
            for (p, best) in best.into_iter().enumerate() {
                best.store(lanes.as_mut_ptr().add(p * L::WIDTH));
            }
        }
        let rest = self.x[whole..].iter().chain(&lanes);
        *self.highest = rest.fold(f32::NEG_INFINITY, |best, &x| if x > best { x } else { best });
    }
}

#[derive(Clone, Copy)]
struct ExpAbove(f32);

impl Term for ExpAbove {
    #[inline(always)]
    unsafe fn accumulate<L: Lanes>(self, x: L, lane: L) -> L {
        // SAFETY: the caller's promise.
        unsafe { lane.add(exp_lanes(x.sub(L::splat(self.0)))) }
    }
}

struct ExpSum<'a> {
    x: &'a [f32],
    highest: f32,
    total: &'a mut f32,
}

impl Kernel for ExpSum<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller's promise.
        *self.total = unsafe { sum::<L, _>(self.x, ExpAbove(self.highest)) };
    }
}

/// Keeps the best so far in `out` as a heap whose first entry is the worst of them.
struct TopK<'a> {
    x: &'a [f32],
    out: &'a mut [(u32, f32)],
    found: &'a mut usize,
}

impl Kernel for TopK<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        const STRIDE: usize = 64;
        for (chunk, first) in self.x.chunks(STRIDE).zip((0u32..).step_by(STRIDE)) {
            // Later ids lose ties, so a chunk matters only if it has something above the worst kept.
            let full = *self.found == self.out.len();
            let mut highest = f32::NEG_INFINITY;
            if full {
                // SAFETY: the caller's promise.
                unsafe { Maximum { x: chunk, highest: &mut highest }.run::<L>() };
            }
            if full && highest <= self.out[0].1 {
                continue;
            }
            for (&value, id) in chunk.iter().zip(first..) {
                if *self.found < self.out.len() {
                    if !value.is_nan() {
                        self.out[*self.found] = (id, value);
                        sift_up(&mut self.out[..=*self.found]);
                        *self.found += 1;
                    }
                } else if value > self.out[0].1 {
                    self.out[0] = (id, value);
                    sift_down(self.out);
                }
            }
        }
    }
}

/// True if `a` ranks after `b`.
fn worse(a: (u32, f32), b: (u32, f32)) -> bool {
    a.1 < b.1 || (a.1 == b.1 && a.0 > b.0)
}

fn sift_up(heap: &mut [(u32, f32)]) {
    let mut at = heap.len() - 1;
    while at > 0 && worse(heap[at], heap[(at - 1) / 2]) {
        heap.swap(at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
}

fn sift_down(heap: &mut [(u32, f32)]) {
    let mut at = 0;
    loop {
        let mut worst = at;
        for child in [2 * at + 1, 2 * at + 2] {
            if child < heap.len() && worse(heap[child], heap[worst]) {
                worst = child;
            }
        }
        if worst == at {
            return;
        }
        heap.swap(at, worst);
        at = worst;
    }
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
