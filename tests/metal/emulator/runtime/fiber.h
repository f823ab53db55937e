// Fibers: a stack of its own for every GPU thread. Registers are switched in assembly on x86-64, by
// ucontext elsewhere; the sanitizers are told of every switch.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <vector>
#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)
#define EMULATOR_ASSEMBLY 1
#else
#include <ucontext.h>
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ADDRESS 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#endif

// The scheduler itself is not instrumented under the thread sanitizer: what it does between two
// lanes must not count as synchronisation.
#ifdef EMULATOR_THREAD
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_set_fiber_name(void* fiber, const char* name);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace emulator {

#ifdef EMULATOR_THREAD
constexpr size_t kStackBytes = 64 * 1024;
#else
constexpr size_t kStackBytes = 256 * 1024;
#endif
constexpr size_t kGuardBytes = 4096;

class Stacks {
 public:
  char* take() {
    if (!free_.empty()) {
      char* stack = free_.back();
      free_.pop_back();
      return stack;
    }
    char* mapped =
        static_cast<char*>(mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (mapped == MAP_FAILED || mprotect(mapped, kGuardBytes, PROT_NONE) != 0) {
      perror("emulator: no stack for a lane");
      abort();
    }
    return mapped + kGuardBytes;
  }
  void give_back(char* stack) {
#ifdef EMULATOR_THREAD
    // Unmapped, so that the next threadgroup does not inherit the history of these addresses.
    unmap(stack);
#else
    free_.push_back(stack);
#endif
  }
  // Every kernel has stacks of its own, and a process may have 65,530 mappings.
  void release() {
    for (char* stack : free_) unmap(stack);
    free_.clear();
  }

 private:
  static void unmap(char* stack) { munmap(stack - kGuardBytes, kStackBytes + kGuardBytes); }

  std::vector<char*> free_;
};

#ifdef EMULATOR_ASSEMBLY
extern "C" void emulator_switch(void** save, void* to);
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch,@function
emulator_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size emulator_switch,.-emulator_switch
)");
#endif

struct Fiber {
  char* stack = nullptr;
  void* sanitizer_fiber = nullptr;
#ifdef EMULATOR_ASSEMBLY
  void* stack_pointer = nullptr;
#else
  ucontext_t registers;
#endif

  void prepare(char* on_stack, void (*body)()) {
    stack = on_stack;
#ifdef EMULATOR_ADDRESS
    __asan_unpoison_memory_region(stack, kStackBytes);
#endif
#ifdef EMULATOR_ASSEMBLY
    void** top = reinterpret_cast<void**>(stack + kStackBytes);
    *--top = nullptr;  // keeps the stack aligned to 16 bytes at entry
    *--top = reinterpret_cast<void*>(body);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    stack_pointer = top;
#else
    getcontext(&registers);
    registers.uc_stack.ss_sp = stack;
    registers.uc_stack.ss_size = kStackBytes;
    registers.uc_link = nullptr;
    makecontext(&registers, body, 0);
#endif
  }
};

// The scheduler's own stack, and the switches to and from it.
class Switcher {
 public:
  void start() {
#ifdef EMULATOR_THREAD
    sanitizer_fiber_ = __tsan_get_current_fiber();
#endif
  }

  void enter(Fiber& fiber) {
#ifdef EMULATOR_ADDRESS
    void* fake;
    __sanitizer_start_switch_fiber(&fake, fiber.stack, kStackBytes);
#endif
#ifdef EMULATOR_THREAD
    __tsan_switch_to_fiber(fiber.sanitizer_fiber, 1);
#endif
#ifdef EMULATOR_ASSEMBLY
    emulator_switch(&stack_pointer_, fiber.stack_pointer);
#else
    swapcontext(&registers_, &fiber.registers);
#endif
#ifdef EMULATOR_ADDRESS
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  // First thing on a fiber.
  void entered() {
#ifdef EMULATOR_ADDRESS
    __sanitizer_finish_switch_fiber(nullptr, &bottom_, &size_);
#endif
  }

  // Back to the scheduler; returns when the fiber is entered again, never if it is its last.
  __attribute__((noinline)) void leave(Fiber& fiber, bool last) {
#ifdef EMULATOR_ADDRESS
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(last ? nullptr : &fake, bottom_, size_);
#endif
#ifdef EMULATOR_THREAD
    __tsan_switch_to_fiber(sanitizer_fiber_, 1);
#endif
#ifdef EMULATOR_ASSEMBLY
    emulator_switch(&fiber.stack_pointer, stack_pointer_);
#else
    swapcontext(&fiber.registers, &registers_);
#endif
#ifdef EMULATOR_ADDRESS
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    (void)last;
  }

 private:
#ifdef EMULATOR_ASSEMBLY
  void* stack_pointer_ = nullptr;
#else
  ucontext_t registers_;
#endif
  void* sanitizer_fiber_ = nullptr;
  const void* bottom_ = nullptr;
  size_t size_ = 0;
};

}  // namespace emulator
