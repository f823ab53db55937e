// Atomics, all relaxed as in Metal.
#pragma once

namespace metal {

enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  std::atomic<T> value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;

constexpr std::memory_order kRelaxed = std::memory_order_relaxed;
template <class T>
T atomic_load_explicit(const atomic<T>* object, memory_order) {
  return object->value.load(kRelaxed);
}
template <class T, class U>
void atomic_store_explicit(atomic<T>* object, U value, memory_order) {
  object->value.store((T)value, kRelaxed);
}
template <class T, class U>
T atomic_exchange_explicit(atomic<T>* object, U value, memory_order) {
  return object->value.exchange((T)value, kRelaxed);
}
template <class T, class U>
bool atomic_compare_exchange_weak_explicit(atomic<T>* object, T* expected, U value, memory_order,
                                           memory_order) {
  return object->value.compare_exchange_weak(*expected, (T)value, kRelaxed);
}
// `was` and `by` are in scope of the expression.
#define MSL_ATOMIC(name, expression)                                               \
  template <class T, class U>                                                      \
  T atomic_fetch_##name##_explicit(atomic<T>* object, U value, memory_order) {     \
    const T by = (T)value;                                                         \
    T was = object->value.load(kRelaxed);                                          \
    while (!object->value.compare_exchange_weak(was, (T)(expression), kRelaxed)) { \
    }                                                                              \
    return was;                                                                    \
  }
MSL_ATOMIC(add, was + by)
MSL_ATOMIC(sub, was - by)
MSL_ATOMIC(max, was < by ? by : was)
MSL_ATOMIC(min, by < was ? by : was)
MSL_ATOMIC(and, was& by)
MSL_ATOMIC(or, was | by)
MSL_ATOMIC(xor, was ^ by)
#undef MSL_ATOMIC
}  // namespace metal
