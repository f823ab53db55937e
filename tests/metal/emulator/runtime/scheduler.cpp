// Runs a grid of GPU threads on one CPU thread: threadgroups one after another, the lanes of one in
// turns, each until its next simd operation or barrier. A simdgroup goes on when all its lanes have
// arrived at the same place, a threadgroup barrier opens when all simdgroups have.
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fiber.h"
#include "runtime.h"

namespace emulator {
namespace {

constexpr size_t kThreadgroupMemory = 32 * 1024;
constexpr uint32_t kMaxThreads = 1024;
// Room for the blocks, their alignment, and the keys of barriers in front of them.
constexpr size_t kArenaBytes = 1 << 17;
constexpr size_t kKeyBytes = 4096;

enum class Status : uint8_t { kReady, kWaiting, kDone };

struct Lane {
  LaneContext context;
  Fiber fiber;
  Status status;
  Wait wait;
  Site site;
  uint32_t group;
  uint32_t exchanges;
  uint32_t barriers[2];
};

struct Simdgroup {
  // Two tables in turns: a lane may leave its next value before the slowest has read this one.
  alignas(16) unsigned char slots[2][kSimdWidth * kSlot];
  uint32_t first, count;
  uint32_t present;
  Status status;
};

struct Block {
  const void* key;
  void* memory;
};

struct Scheduler {
  Entry entry;
  void** buffers;
  Dispatch dispatch;
  Counts counts;
  uint64_t random;
  std::string error;
  std::vector<Lane> lanes;
  // As many as a whole threadgroup has. One at the edge of the grid has fewer: what lanes read of
  // the others stays where it is, or its end would be a race to the thread sanitizer.
  std::vector<Simdgroup> groups;
  uint32_t group_count;
  std::vector<Block> blocks;
  Stacks stacks;
  Switcher switcher;
  Lane* current = nullptr;
  size_t threadgroup_bytes = 0;
  // Threadgroup memory of the thread sanitizer's build, newly mapped for each threadgroup so that
  // it has no history.
  char* arena = nullptr;
  size_t arena_used = 0;
  char finished_key = 0;
};

Scheduler& scheduler = *new Scheduler;

bool failed() { return !scheduler.error.empty(); }

void fail(const char* kind, const std::string& message) {
  if (!failed()) scheduler.error = std::string(kind) + ": " + message;
}

uint64_t next_random() {
  uint64_t& state = scheduler.random;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

template <class T>
void arrange(T* order, size_t count) {
  if (scheduler.dispatch.schedule == kBackward) {
    for (size_t i = 0; i < count / 2; i++) std::swap(order[i], order[count - 1 - i]);
  } else if (scheduler.dispatch.schedule == kRandom) {
    for (size_t i = count; i > 1; i--) std::swap(order[i - 1], order[next_random() % i]);
  }
}

std::string whereabouts(const Lane& lane) {
  char text[512];
  int length = snprintf(text, sizeof text, "thread %u (simdgroup %u, lane %u)",
                        lane.context.thread_index_in_threadgroup, lane.group,
                        lane.context.thread_index_in_simdgroup);
  if (lane.status == Status::kDone) {
    snprintf(text + length, sizeof text - length, " has returned");
  } else {
    snprintf(text + length, sizeof text - length, " waits at %s, %s:%d", lane.site.operation,
             lane.site.file, lane.site.line);
  }
  return text;
}

bool same_place(const Lane& a, const Lane& b) {
  return a.status == b.status &&
         (a.status == Status::kDone ||
          (a.wait == b.wait && a.site.line == b.site.line &&
           !strcmp(a.site.operation, b.site.operation) && !strcmp(a.site.file, b.site.file)));
}

void lane_body() {
  scheduler.switcher.entered();
  LaneContext context = scheduler.current->context;  // on the lane's own stack
  scheduler.entry(scheduler.buffers, &context);
#ifdef EMULATOR_THREAD
  __tsan_release(&scheduler.finished_key);  // a lane comes before the end of the dispatch
#endif
  scheduler.current->status = Status::kDone;
  scheduler.switcher.leave(scheduler.current->fiber, true);
  abort();
}

void wait_here(Wait kind, const Site* site) {
  Lane& lane = *scheduler.current;
  lane.wait = kind;
  lane.site = *site;
  lane.status = Status::kWaiting;
  scheduler.switcher.leave(lane.fiber, false);
}

// Lets every ready lane of a simdgroup run to its next stop, then sees whether all stopped alike.
void run_simdgroup(Simdgroup& group) {
  uint32_t order[kSimdWidth];
  for (uint32_t i = 0; i < group.count; i++) order[i] = group.first + i;
  arrange(order, group.count);
  for (uint32_t i = 0; i < group.count; i++) {
    Lane& lane = scheduler.lanes[order[i]];
    scheduler.current = &lane;
    scheduler.counts.lane_switches++;
    scheduler.switcher.enter(lane.fiber);
    if (failed()) return;
  }
  Lane& first = scheduler.lanes[group.first];
  for (uint32_t i = 1; i < group.count; i++) {
    Lane& other = scheduler.lanes[group.first + i];
    if (!same_place(first, other)) {
      bool barrier =
          first.wait == Wait::kThreadgroupBarrier || other.wait == Wait::kThreadgroupBarrier;
      return fail("divergence", std::string(barrier ? "non-uniform threadgroup_barrier: " : "") +
                                    whereabouts(first) + " while " + whereabouts(other));
    }
  }
  if (first.status == Status::kWaiting && first.wait != Wait::kThreadgroupBarrier) {
    for (uint32_t i = 0; i < group.count; i++)
      scheduler.lanes[group.first + i].status = Status::kReady;
  } else {
    group.status = first.status;
  }
}

// Opens the threadgroup barrier at which all simdgroups wait. False where all have returned.
bool open_barrier() {
  Lane& first = scheduler.lanes[0];
  for (uint32_t i = 0; i < scheduler.group_count; i++) {
    Lane& other = scheduler.lanes[scheduler.groups[i].first];
    if (!same_place(first, other)) {
      fail("divergence", "non-uniform threadgroup_barrier: " + whereabouts(first) + " while " +
                             whereabouts(other));
      return false;
    }
  }
  if (first.status == Status::kDone) return false;
  for (Lane& lane : scheduler.lanes) lane.status = Status::kReady;
  for (uint32_t i = 0; i < scheduler.group_count; i++)
    scheduler.groups[i].status = Status::kReady;
  scheduler.counts.barriers++;
  return true;
}

void run_lanes() {
  std::vector<Simdgroup*> ready;
  do {
    ready.clear();
    for (uint32_t i = 0; i < scheduler.group_count; i++) ready.push_back(&scheduler.groups[i]);
    arrange(ready.data(), ready.size());
    while (!ready.empty()) {
      bool random = scheduler.dispatch.schedule == kRandom;
      size_t turn = random ? next_random() % ready.size() : 0;
      Simdgroup& group = *ready[turn];
      run_simdgroup(group);
      if (failed()) return;
      if (group.status != Status::kReady) ready.erase(ready.begin() + turn);
    }
  } while (open_barrier());
}

#ifdef EMULATOR_THREAD
void* barrier_key(Wait kind, const Lane& lane, uint32_t round) {
  size_t index = kind == Wait::kThreadgroupBarrier ? 0 : 1 + lane.group;
  return scheduler.arena + 16 * index + 8 * (round & 1);
}
#endif

void enter_threadgroup() {
#ifdef EMULATOR_THREAD
  scheduler.arena = static_cast<char*>(
      mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  memset(scheduler.arena, 0xFF, kArenaBytes);
  scheduler.arena_used = kKeyBytes;
#endif
  scheduler.threadgroup_bytes = 0;
}

void leave_threadgroup() {
  for (Lane& lane : scheduler.lanes) {
#ifdef EMULATOR_THREAD
    __tsan_destroy_fiber(lane.fiber.sanitizer_fiber);
#endif
    scheduler.stacks.give_back(lane.fiber.stack);
  }
#ifdef EMULATOR_THREAD
  munmap(scheduler.arena, kArenaBytes);
#else
  for (Block& block : scheduler.blocks) free(block.memory);
#endif
  scheduler.blocks.clear();
}

void make_lane(Lane& lane, uint32_t thread, const LaneContext& shared) {
  lane = Lane();
  LaneContext& context = lane.context = shared;
  const uint32_t* size = context.threads_per_threadgroup;
  const uint32_t position[3] = {thread % size[0], thread / size[0] % size[1],
                                thread / size[0] / size[1]};
  for (int i = 0; i < 3; i++) {
    context.thread_position_in_threadgroup[i] = position[i];
    context.thread_position_in_grid[i] =
        context.threadgroup_position_in_grid[i] * context.dispatch_threads_per_threadgroup[i] +
        position[i];
  }
  context.thread_index_in_threadgroup = thread;
  context.simdgroup_index_in_threadgroup = lane.group = thread / kSimdWidth;
  context.thread_index_in_simdgroup = thread % kSimdWidth;
  lane.status = Status::kReady;
  lane.fiber.prepare(scheduler.stacks.take(), lane_body);
#ifdef EMULATOR_THREAD
  lane.fiber.sanitizer_fiber = __tsan_create_fiber(0);
  char name[64];
  const uint32_t* at = context.threadgroup_position_in_grid;
  snprintf(name, sizeof name, "threadgroup (%u,%u,%u) thread %u", at[0], at[1], at[2], thread);
  __tsan_set_fiber_name(lane.fiber.sanitizer_fiber, name);
#endif
}

void run_threadgroup(const LaneContext& shared) {
  const uint32_t* size = shared.threads_per_threadgroup;
  const uint32_t threads = size[0] * size[1] * size[2];
  enter_threadgroup();
  scheduler.lanes.resize(threads);
  scheduler.group_count = shared.simdgroups_per_threadgroup;
  for (uint32_t thread = 0; thread < threads; thread++)
    make_lane(scheduler.lanes[thread], thread, shared);
  for (uint32_t i = 0; i < scheduler.group_count; i++) {
    Simdgroup& group = scheduler.groups[i];
    group.first = i * kSimdWidth;
    group.count = threads - group.first < kSimdWidth ? threads - group.first : kSimdWidth;
    group.present = group.count == kSimdWidth ? ~0u : (1u << group.count) - 1;
    group.status = Status::kReady;
  }
  run_lanes();
  leave_threadgroup();
}

uint32_t simdgroups(const uint32_t size[3]) {
  return (size[0] * size[1] * size[2] + kSimdWidth - 1) / kSimdWidth;
}

void run_grid() {
  const Dispatch& dispatch = scheduler.dispatch;
  LaneContext shared{};
  uint32_t* size = shared.dispatch_threads_per_threadgroup;
  uint32_t* count = shared.threadgroups_per_grid;
  for (int i = 0; i < 3; i++) {
    shared.threads_per_grid[i] = dispatch.grid[i];
    size[i] =
        dispatch.threadgroup[i] < dispatch.grid[i] ? dispatch.threadgroup[i] : dispatch.grid[i];
    if (size[i] == 0) return fail("dispatch", "an empty grid or threadgroup");
    count[i] = (dispatch.grid[i] + size[i] - 1) / size[i];
  }
  if (size[0] * size[1] * size[2] > kMaxThreads) {
    return fail("dispatch", "more than 1024 threads in a threadgroup");
  }
  shared.dispatch_simdgroups_per_threadgroup = simdgroups(size);
  scheduler.groups.resize(shared.dispatch_simdgroups_per_threadgroup);
  std::vector<uint64_t> order(uint64_t(count[0]) * count[1] * count[2]);
  for (uint64_t i = 0; i < order.size(); i++) order[i] = i;
  arrange(order.data(), order.size());
  for (uint64_t index : order) {
    uint32_t* at = shared.threadgroup_position_in_grid;
    at[0] = index % count[0];
    at[1] = index / count[0] % count[1];
    at[2] = index / count[0] / count[1];
    for (int i = 0; i < 3; i++) {
      const uint32_t left = dispatch.grid[i] - at[i] * size[i];
      shared.threads_per_threadgroup[i] = left < size[i] ? left : size[i];
    }
    shared.simdgroups_per_threadgroup = simdgroups(shared.threads_per_threadgroup);
    run_threadgroup(shared);
    if (failed()) return;
  }
}

// Denormal numbers read and written as zero while it lives.
class DenormalsFlushed {
 public:
#if defined(__x86_64__)
  explicit DenormalsFlushed(bool on) : before_(__builtin_ia32_stmxcsr()) {
    if (on) __builtin_ia32_ldmxcsr(before_ | 0x8040);
  }
  ~DenormalsFlushed() { __builtin_ia32_ldmxcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  explicit DenormalsFlushed(bool on) {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    if (on) asm volatile("msr fpcr, %0" ::"r"(before_ | 1ull << 24));
  }
  ~DenormalsFlushed() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

 private:
  uint64_t before_;
#else
  explicit DenormalsFlushed(bool) {}
#endif
};

}  // namespace
}  // namespace emulator

using namespace emulator;

extern "C" {

uint32_t emulator_lane() { return scheduler.current->context.thread_index_in_simdgroup; }

uint32_t emulator_sum_order() { return scheduler.dispatch.sum_order; }

const unsigned char* emulator_exchange(const void* value, size_t size, const Site* site,
                                       uint32_t* present) {
  Lane& lane = *scheduler.current;
  Simdgroup& group = scheduler.groups[lane.group];
  unsigned char* table = group.slots[lane.exchanges++ & 1];
  // Byte by byte: memcpy would be seen by the sanitizers.
  const unsigned char* from = static_cast<const unsigned char*>(value);
  volatile unsigned char* to = table + kSlot * lane.context.thread_index_in_simdgroup;
  for (size_t i = 0; i < size; i++) to[i] = from[i];
  scheduler.counts.exchanges++;
  wait_here(Wait::kSimd, site);
  *present = group.present;
  return table;
}

void emulator_barrier(Wait kind, int flags, const Site* site) {
#ifdef EMULATOR_THREAD
  // Only a barrier that names a memory orders what is written there.
  Lane& lane = *scheduler.current;
  void* key = barrier_key(kind, lane, lane.barriers[kind == Wait::kThreadgroupBarrier]++);
  if (flags) __tsan_release(key);
  wait_here(kind, site);
  if (flags) __tsan_acquire(key);
#else
  (void)flags;
  wait_here(kind, site);
#endif
}

void* emulator_threadgroup_block(const void* key, size_t size, const char* name) {
  for (Block& block : scheduler.blocks) {
    if (block.key == key) return block.memory;
  }
  scheduler.threadgroup_bytes += size;
  if (scheduler.threadgroup_bytes > scheduler.counts.threadgroup_bytes) {
    scheduler.counts.threadgroup_bytes = scheduler.threadgroup_bytes;
  }
  if (scheduler.threadgroup_bytes > kThreadgroupMemory) {
    const Site site{name, "", 0};
    emulator_fail("threadgroup memory", "over 32 KiB with", &site);
  }
#ifdef EMULATOR_THREAD
  void* memory = scheduler.arena + scheduler.arena_used;
  scheduler.arena_used += (size + 15) / 16 * 16;
#else
  // A block each, so that the address sanitizer sees its ends; filled so that it reads as NaN.
  void* memory = malloc(size);
  for (size_t i = 0; i < size; i++) static_cast<volatile unsigned char*>(memory)[i] = 0xFF;
#endif
  scheduler.blocks.push_back({key, memory});
  return memory;
}

void emulator_fail(const char* kind, const char* message, const Site* site) {
  char place[512];
  if (site->line) {
    snprintf(place, sizeof place, " %s, %s:%d", site->operation, site->file, site->line);
  } else {
    snprintf(place, sizeof place, " %s", site->operation);
  }
  fail(kind, std::string(message) + place);
  for (;;) scheduler.switcher.leave(scheduler.current->fiber, false);
}

int emulator_run(Entry entry, void** buffers, const Dispatch* dispatch, char* error,
                 size_t error_size, Counts* counts) {
  scheduler.entry = entry;
  scheduler.buffers = buffers;
  scheduler.dispatch = *dispatch;
  scheduler.counts = Counts{};
  scheduler.random = dispatch->seed * 0x9E3779B97F4A7C15ull + 1;
  scheduler.error.clear();
  scheduler.switcher.start();
  {
    const DenormalsFlushed flushed(dispatch->flush_denormals);
    run_grid();
  }
  scheduler.stacks.release();
#ifdef EMULATOR_THREAD
  __tsan_acquire(&scheduler.finished_key);
#endif
  *counts = scheduler.counts;
  if (!failed()) return 0;
  snprintf(error, error_size, "%s", scheduler.error.c_str());
  return 1;
}
}
