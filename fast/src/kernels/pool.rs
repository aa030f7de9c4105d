//! Worker threads for the kernels: one job at a time, cut into static parts, nothing allocated per call.
//! Whoever is awake takes the next part, so a worker that the system keeps waiting delays nobody. Workers spin for a while
//! and then park. Every part runs with subnormals flushed. Results cannot depend on the number of threads or on who ran what,
//! because kernels write disjoint outputs and reduce nothing across parts.

use super::flush::FlushGuard;
use super::lanes::Isa;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// Spins before a waiting thread parks or yields: about 50 us, longer than the gap between two kernels of a pass.
const SPINS: usize = 20_000;

/// A fixed set of threads (the caller is one of them) and the instruction set that kernels use.
pub struct Pool {
    board: Arc<Board>,
    workers: Vec<Worker>,
    turn: Mutex<()>,
    isa: Isa,
}

struct Worker {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

type Job = dyn Fn(usize) + Sync;

struct Board {
    /// Of the current job: its number, its parts, the next part to take ([`Ticket`]).
    ticket: AtomicU64,
    /// Parts finished.
    done: AtomicUsize,
    panicked: AtomicBool,
    closing: AtomicBool,
    job: UnsafeCell<Option<*const Job>>,
}

// SAFETY: `job` is written only by the caller that holds `turn`, while no part is untaken or unfinished, before the release
// store of `ticket`; it is read only by whoever has taken a part of that ticket, and the caller waits for every part.
unsafe impl Sync for Board {}
// SAFETY: as above; the pointer is used only while the closure it points to is borrowed by `Pool::run`.
unsafe impl Send for Board {}

/// 32 bits of job number, so that a late worker's exchange fails; 16 bits of parts; 16 bits of the next part.
#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    fn new(after: Self, parts: usize) -> Self {
        Self(((after.0 >> 32) + 1) << 32 | (parts as u64) << 16)
    }
    fn parts(self) -> u64 {
        self.0 >> 16 & 0xffff
    }
    fn next(self) -> u64 {
        self.0 & 0xffff
    }
}

impl Pool {
    /// `threads` threads, the caller included; 0 means one per core. Kernels use the widest instruction set found.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::detect())
    }

    /// A pool that uses a stated instruction set, which the processor must have.
    pub(crate) fn with_isa(threads: usize, isa: Isa) -> Self {
        assert!(isa.available(), "the processor lacks {isa:?}");
        let threads = if threads == 0 { thread::available_parallelism().map_or(1, usize::from) } else { threads };
        let threads = threads.min(0xffff);
        let board = Arc::new(Board {
            ticket: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            job: UnsafeCell::new(None),
        });
        let workers = (1..threads)
            .map_while(|part| {
                let board = Arc::clone(&board);
                let named = thread::Builder::new().name(format!("straw-{part}"));
                // A machine that refuses a thread gets a smaller pool: results do not depend on it.
                named.spawn(move || work(&board)).ok()
            })
            .map(|handle| Worker { thread: handle.thread().clone(), handle: Some(handle) })
            .collect();
        Self { board, workers, turn: Mutex::new(()), isa }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The instruction set that kernels use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `job(part, range)` for every part of `0..items`, at least `grain` items a part (fewer parts when there is
    /// little to do), and returns when all are done. `part < threads()`. Jobs must not call the pool again.
    pub(super) fn split<F: Fn(usize, Range<usize>) + Sync>(&self, items: usize, grain: usize, job: F) {
        let parts = (items / grain.max(1)).clamp(1, self.threads());
        let cut = |part: usize| items * part / parts;
        if items == 0 {
        } else if parts == 1 {
            let _flush = FlushGuard::new();
            job(0, 0..items);
        } else {
            self.run(parts, &|part| job(part, cut(part)..cut(part + 1)));
        }
    }

    fn run(&self, parts: usize, job: &(dyn Fn(usize) + Sync + '_)) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: only the lifetime changes. `run` returns after every part has ended, so the pointer is never used after
        // the borrow ends; `turn` keeps other callers away meanwhile.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync + '_), &'static Job>(job) };
        // SAFETY: nobody reads `job` now: all parts of the former ticket have ended.
        unsafe { *self.board.job.get() = Some(job) };
        self.board.done.store(0, Ordering::Relaxed);
        let former = Ticket(self.board.ticket.load(Ordering::Relaxed));
        self.board.ticket.store(Ticket::new(former, parts).0, Ordering::Release);
        for worker in self.workers.iter().take(parts - 1) {
            worker.thread.unpark();
        }
        while self.board.take_part() {}
        let mut spins = 0;
        while self.board.done.load(Ordering::Acquire) < parts {
            wait(&mut spins, thread::yield_now);
        }
        assert!(!self.board.panicked.swap(false, Ordering::Relaxed), "a kernel panicked, see the message above");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.board.closing.store(true, Ordering::Release);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(handle) = worker.handle.take() {
                // A worker catches its jobs' panics, so joining cannot fail; if it did, dropping is no place to say so.
                let _ = handle.join();
            }
        }
    }
}

impl Board {
    /// Takes and runs the next part of the current job; false if none is left.
    fn take_part(&self) -> bool {
        let ticket = Ticket(self.ticket.load(Ordering::Acquire));
        if ticket.next() == ticket.parts() {
            return false;
        }
        if self.ticket.compare_exchange(ticket.0, ticket.0 + 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return true;
        }
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let _flush = FlushGuard::new();
            // SAFETY: this part is taken and not done, so `run` still waits and keeps the closure alive.
            let job = unsafe { &*(*self.job.get()).expect("a ticket has a job") };
            job(ticket.next() as usize);
        }));
        if ran.is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
        self.done.fetch_add(1, Ordering::Release);
        true
    }
}

fn work(board: &Board) {
    let mut spins = 0;
    while !board.closing.load(Ordering::Acquire) {
        if board.take_part() {
            spins = 0;
        } else {
            wait(&mut spins, thread::park);
        }
    }
}

fn wait(spins: &mut usize, rest: fn()) {
    if *spins < SPINS {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        rest();
    }
}

/// A slice that parts write at disjoint places.
pub(super) struct Disjoint<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: the only access is `slice`, whose caller promises disjoint ranges.
unsafe impl<T: Send> Sync for Disjoint<T> {}

impl<T> Disjoint<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// `len` elements from `at`.
    ///
    /// # Safety
    /// The slice given to `new` outlives the use, and no two live results overlap.
    #[expect(clippy::mut_from_ref, reason = "parts write disjoint ranges of one slice")]
    pub(super) unsafe fn slice(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "elements {at}..+{len} of a slice of {}", self.len);
        // SAFETY: in bounds by the line above; disjoint and alive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

impl Disjoint<f32> {
    /// A pointer to `span` floats from `at`, of which parts use interleaved columns.
    pub(super) fn columns(&self, at: usize, span: usize) -> *mut f32 {
        assert!(at <= self.len && span <= self.len - at, "floats {at}..+{span} of a slice of {}", self.len);
        self.start.wrapping_add(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once_at_any_thread_count() {
        for threads in [1, 2, 3, 4, 9] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for items in [0, 1, 2, 5, 64, 1001] {
                for grain in [1, 7] {
                    let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                    pool.split(items, grain, |part, range| {
                        assert!(part < threads);
                        range.for_each(|i| _ = counts[i].fetch_add(1, Ordering::Relaxed));
                    });
                    assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_caller_and_the_pool_still_works() {
        let pool = Pool::new(2);
        for bad in 0..2 {
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.split(2, 1, |_, range| assert_ne!(range.start, bad))));
            assert!(outcome.is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.split(100, 1, |_, range| _ = sum.fetch_add(range.sum(), Ordering::Relaxed));
        assert_eq!(sum.into_inner(), 4950);
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..50).for_each(|_| pool.split(10, 1, |_, r| _ = sum.fetch_add(r.len(), Ordering::Relaxed))));
            }
        });
        assert_eq!(sum.into_inner(), 1500);
    }
}
