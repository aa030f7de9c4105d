// The emulator's machine: one fiber per thread of a threadgroup, one threadgroup at a time per worker. Barriers and
// simdgroup operations are meetings; whoever breaks their rules is reported. Threadgroup memory is poisoned before every
// group and fenced. The order of groups, simdgroups and lanes follows a seed. Knows nothing of the shading language.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <ucontext.h>
#endif

typedef unsigned int uint;
typedef unsigned int uint3 __attribute__((ext_vector_type(3)));

namespace rt {

enum State : uint8_t { Running, AtSimd, AtSimdBarrier, AtBarrier, Done };

// What a thread may ask of its place.
struct Place {
  uint flat, lane, simdgroup, simdgroups;
  uint3 group, groups, in_group, group_size;
};

#if defined(__x86_64__)
struct Context {
  void* sp = nullptr;
};
#else
typedef ucontext_t Context;
#endif

struct Fiber {
  Context context;
  char* stack;
  State state;
  const void* site;
  Place place;
};

struct Simdgroup {
  uint64_t slots[2][32];
  int phase;
  bool reduced;
  uint64_t reduction;
};

typedef void (*Body)(void* const* arguments, const Place&);

constexpr size_t Stack = 128 << 10, Threadgroup = 32 << 10, Fence = 64, Arrays = 256;
constexpr uint32_t Poison = 0x7fedbeef;  // a quiet NaN
constexpr uint8_t FenceByte = 0xa5;

struct Launch {
  Body body;
  void* const* arguments;
  uint3 groups, group_size;
  uint seed;
  std::mutex mutex;
  std::string message;
  void report(const char* what) {
    std::lock_guard<std::mutex> hold(mutex);
    if (message.empty()) message = what;
  }
};

// A worker's fibers and the threadgroup memory of the group it runs.
struct World {
  std::vector<Fiber*> fibers;
  std::vector<Simdgroup> simdgroups;
  Launch* launch;
  Fiber* me;
  Context main;
  uint index, first, count;
  const uint* order;
  uint64_t random;
  uint threads;
  alignas(64) unsigned char memory[Threadgroup + Fence * (Arrays + 1)];
  size_t used, fenced;
  size_t offset[Arrays], length[Arrays];
  bool declared[Arrays];
};
static thread_local World* world;

// ---- switching
#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void straw_fiber_switch(void** save, void* to);
extern "C" __attribute__((visibility("hidden"))) void straw_fiber_boot();
asm(R"(.text
.globl straw_fiber_switch
.hidden straw_fiber_switch
straw_fiber_switch:
 push %rbp
 push %rbx
 push %r12
 push %r13
 push %r14
 push %r15
 mov %rsp,(%rdi)
 mov %rsi,%rsp
 pop %r15
 pop %r14
 pop %r13
 pop %r12
 pop %rbx
 pop %rbp
 ret
.globl straw_fiber_boot
.hidden straw_fiber_boot
straw_fiber_boot:
 mov %r12,%rdi
 call straw_fiber_main
 ud2
)");
static void go(Context& from, Context& to) { straw_fiber_switch(&from.sp, to.sp); }
extern "C" __attribute__((visibility("hidden"))) void straw_fiber_main(Fiber* f);
static void boot(Fiber* f) {
  void** sp = (void**)(f->stack + Stack - 64);
  *--sp = (void*)straw_fiber_boot;
  *--sp = nullptr;  // rbp
  *--sp = nullptr;  // rbx
  *--sp = f;        // r12
  for (int i = 0; i < 3; ++i) *--sp = nullptr;
  f->context.sp = sp;
}
#else
static void go(Context& from, Context& to) { swapcontext(&from, &to); }
extern "C" __attribute__((visibility("hidden"))) void straw_fiber_main(Fiber* f);
static void boot_entry(uint low, uint high) { straw_fiber_main((Fiber*)((uintptr_t)high << 32 | low)); }
static void boot(Fiber* f) {
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = Stack;
  f->context.uc_link = nullptr;
  makecontext(&f->context, (void (*)())boot_entry, 2, (uint)(uintptr_t)f, (uint)((uintptr_t)f >> 32));
}
#endif

// On to the next lane of this simdgroup that can run, back to the scheduler after the last one.
static void next(Fiber* f) {
  World& w = *world;
  while (++w.index < w.count) {
    Fiber* g = w.fibers[w.first + w.order[w.index]];
    if (g->state != Running) continue;
    w.me = g;
    go(f->context, g->context);
    return;
  }
  go(f->context, w.main);
}
static void wait(State state, const void* site) {
  Fiber* f = world->me;
  f->state = state;
  f->site = site;
  next(f);
}
extern "C" void straw_fiber_main(Fiber* f) {
  world->launch->body(world->launch->arguments, f->place);
  f->state = Done;
  next(f);
}

// ---- what shaders call
static const Place& place() { return world->me->place; }
static void report(const char* what) { world->launch->report(what); }
static void barrier(const void* site) { wait(AtBarrier, site); }
static void simdgroup_barrier(const void* site) { wait(AtSimdBarrier, site); }
// Gives a value to the simdgroup and returns the values of all lanes.
static const uint64_t* exchange(uint64_t value, const void* site) {
  Fiber* f = world->me;
  Simdgroup& s = world->simdgroups[f->place.simdgroup];
  s.slots[s.phase][f->place.lane] = value;
  wait(AtSimd, site);
  return s.slots[s.phase ^ 1];
}
// True when another lane has already reduced this exchange.
static bool reduced(uint64_t*& result) {
  Simdgroup& s = world->simdgroups[world->me->place.simdgroup];
  result = &s.reduction;
  return std::exchange(s.reduced, true);
}
// Threadgroup array number `id`; the first thread that comes makes it.
template <class T> static T& shared(uint id) {
  World& w = *world;
  if (!w.declared[id]) {
    size_t bytes = (sizeof(T) + 15) / 16 * 16;
    w.used += bytes;
    if (w.used > Threadgroup) {
      report("more than 32 KiB of threadgroup memory");
      w.fenced = Fence;
    }
    for (size_t i = 0; i < bytes; i += 4) memcpy(w.memory + w.fenced + i, &Poison, 4);
    memset(w.memory + w.fenced + bytes, FenceByte, Fence);
    w.offset[id] = w.fenced;
    w.length[id] = bytes;
    w.fenced += bytes + Fence;
    w.declared[id] = true;
  }
  return *reinterpret_cast<T*>(w.memory + w.offset[id]);
}

// ---- scheduling
// Runs a simdgroup until all its lanes wait at a threadgroup barrier or are done.
static void run_simdgroup(uint g, uint first, uint count, const uint* order) {
  World& w = *world;
  Simdgroup& s = w.simdgroups[g];
  for (;;) {
    w.first = first, w.count = count, w.order = order;
    for (w.index = 0; w.index < count; ++w.index) {
      Fiber* f = w.fibers[first + order[w.index]];
      if (f->state != Running) continue;
      w.me = f;
      go(w.main, f->context);
    }
    uint at[5] = {};
    const void* site = nullptr;
    bool elsewhere = false;
    for (uint i = first; i < first + count; ++i) {
      Fiber* f = w.fibers[i];
      ++at[f->state];
      if (f->state != AtSimd && f->state != AtSimdBarrier) continue;
      if (site && site != f->site) elsewhere = true;
      if (!site || f->state == AtSimd) site = f->site;
    }
    if (!at[AtSimd] && !at[AtSimdBarrier]) return;
    if (elsewhere || at[AtSimd] + at[AtSimdBarrier] != count) {
      report("a simdgroup operation was reached by a part of the simdgroup");
    } else if (count != 32 && at[AtSimd]) {
      report("a simdgroup operation in a threadgroup that is no multiple of 32 threads");
    }
    // Those that are there meet, so that the launch ends.
    s.phase ^= 1;
    s.reduced = false;
    for (uint i = first; i < first + count; ++i) {
      Fiber* f = w.fibers[i];
      if (f->state == AtSimd || f->state == AtSimdBarrier) f->state = Running;
    }
  }
}

static uint draw(uint bound) {
  world->random = world->random * 6364136223846793005ull + 1442695040888963407ull;
  return uint(world->random >> 33) % bound;
}

static void run_group(uint number) {
  World& w = *world;
  Launch& l = *w.launch;
  uint3 size = l.group_size;
  uint threads = size.x * size.y * size.z, simdgroups = (threads + 31) / 32;
  while (w.fibers.size() < threads) {
    Fiber* f = new Fiber();
    f->stack = (char*)mmap(nullptr, Stack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(f->stack, 4096, PROT_NONE);
    w.fibers.push_back(f);
  }
  w.simdgroups.assign(simdgroups, Simdgroup{});
  w.random = (uint64_t(l.seed) << 32 | number) * 0x9e3779b97f4a7c15ull;
  w.used = 0, w.fenced = Fence;
  memset(w.memory, FenceByte, Fence);
  memset(w.declared, 0, sizeof w.declared);
  for (uint i = 0; i < threads; ++i) {
    Fiber* f = w.fibers[i];
    f->state = Running;
    f->place = Place{i, i % 32, i / 32, simdgroups, uint3{number % l.groups.x, number / l.groups.x % l.groups.y, number / (l.groups.x * l.groups.y)},
                     l.groups, uint3{i % size.x, i / size.x % size.y, i / (size.x * size.y)}, size};
    boot(f);
  }
  std::vector<uint> groups(simdgroups);
  for (uint g = 0; g < simdgroups; ++g) groups[g] = g;
  for (;;) {
    if (l.seed) for (uint i = simdgroups - 1; i > 0; --i) std::swap(groups[i], groups[draw(i + 1)]);
    for (uint g : groups) {
      uint count = std::min(32u, threads - g * 32), order[32];
      for (uint i = 0; i < count; ++i) order[i] = i;
      if (l.seed) for (uint i = count - 1; i > 0; --i) std::swap(order[i], order[draw(i + 1)]);
      run_simdgroup(g, g * 32, count, order);
    }
    uint done = 0;
    const void* site = nullptr;
    for (uint i = 0; i < threads; ++i) {
      Fiber* f = w.fibers[i];
      done += f->state == Done;
      if (f->state != AtBarrier) continue;
      if (site && site != f->site) report("threads of a threadgroup wait at different barriers");
      site = f->site;
    }
    if (done == threads) break;
    if (done) report("a barrier was reached by a part of the threadgroup, the others had returned");
    for (uint i = 0; i < threads; ++i) if (w.fibers[i]->state == AtBarrier) w.fibers[i]->state = Running;
  }
  bool broken = false;
  for (size_t i = 0; i < Fence; ++i) broken |= w.memory[i] != FenceByte;
  for (uint id = 0; id < Arrays; ++id)
    for (size_t i = 0; w.declared[id] && i < Fence; ++i) broken |= w.memory[w.offset[id] + w.length[id] + i] != FenceByte;
  if (broken) report("a write outside a threadgroup array");
}

static std::mutex idle_mutex;
static std::vector<World*> idle;

static void work(Launch& launch, std::atomic<uint>& taken, uint total) {
  World* mine = nullptr;
  {
    std::lock_guard<std::mutex> hold(idle_mutex);
    if (!idle.empty()) mine = idle.back(), idle.pop_back();
  }
  if (!mine) mine = new World();
  world = mine;
  mine->launch = &launch;
#if defined(__x86_64__)
  unsigned before = _mm_getcsr();
  _mm_setcsr((before | 0x8040u) & ~0x6000u);
#elif defined(__aarch64__)
  uint64_t before;
  asm volatile("mrs %0, fpcr" : "=r"(before));
  asm volatile("msr fpcr, %0" ::"r"(before | 1ull << 24));
#endif
  for (uint i; (i = taken++) < total;) {
    // Odd seeds run the groups backwards: their order is nobody's promise.
    run_group(launch.seed % 2 ? total - 1 - i : i);
  }
#if defined(__x86_64__)
  _mm_setcsr(before);
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" ::"r"(before));
#endif
  world = nullptr;
  std::lock_guard<std::mutex> hold(idle_mutex);
  idle.push_back(mine);
}

static int launch(Body body, void* const* arguments, const uint* groups, const uint* size, uint seed, uint threads, char* message, size_t room) {
  Launch l{body, arguments, uint3{groups[0], groups[1], groups[2]}, uint3{size[0], size[1], size[2]}, seed, {}, {}};
  uint total = groups[0] * groups[1] * groups[2], of_group = size[0] * size[1] * size[2];
  if (of_group == 0 || of_group > 1024) l.report("a threadgroup has 1 to 1024 threads");
  std::atomic<uint> taken{0};
  if (l.message.empty()) {
    if (uint64_t(total) * of_group < 4096) threads = 1;
    std::vector<std::thread> others;
    for (uint i = 1; i < std::min(threads, total); ++i) others.emplace_back([&] { work(l, taken, total); });
    work(l, taken, total);
    for (auto& thread : others) thread.join();
  }
  if (l.message.empty()) return 0;
  snprintf(message, room, "%s", l.message.c_str());
  return 1;
}

}  // namespace rt
