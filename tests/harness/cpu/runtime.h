// What a kernel needs while it runs on the CPU: where its thread is, memory under observation,
// barriers, and exchange inside a simdgroup. A fiber is a GPU thread; runtime.cpp switches them.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <type_traits>

typedef uint8_t uchar;
typedef uint16_t ushort;
typedef uint32_t uint;
typedef uint64_t ulong;
struct uint2 {
  uint x, y;
};
struct uint3 {
  uint x, y, z;
};

namespace gpu {

constexpr uint kLanes = 32;

// Metal's names for what a thread knows about itself.
struct Position {
  uint3 thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid;
  uint3 threadgroups_per_grid, threads_per_grid, grid_size, grid_origin;
  uint3 threads_per_threadgroup, dispatch_threads_per_threadgroup;
  uint thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
  uint simdgroups_per_threadgroup, dispatch_simdgroups_per_threadgroup;
  uint threads_per_simdgroup, thread_execution_width;
};
const Position& position();

// Who touched a number last, and when, on a clock that ticks at every barrier. `spread` says how
// far apart several readers are.
enum Spread : uint32_t { ONE, SIMDGROUP, THREADGROUP, GRID };
struct Access {
  uint32_t thread, time;  // thread 0 is the host, or nobody
  Spread spread;
};
struct Cell {
  Access write, read;
  bool known;  // has a value
};

enum Space { DEVICE, SHARED };
struct Array {
  char* data;
  size_t bytes;
  const char* name;
  Space space;
  Cell* cells;  // none for inputs, which nobody writes
  uint64_t read, written;
};

// Each throws when the number is outside the array, and reports any other fault.
void on_read(Array& array, ptrdiff_t index, size_t size);
void on_write(Array& array, ptrdiff_t index, size_t size);
[[noreturn]] void out_of_bounds(const char* name, ptrdiff_t index, size_t count);

// The block of the threadgroup's memory with this number, made when a thread first asks for it.
Array& shared(uint id, const char* name, size_t size, size_t count);

enum Fence { NO_FENCE = 0, FENCE_DEVICE = 1, FENCE_SHARED = 2 };
void barrier(uint fence, int line);
void simd_barrier(uint fence, int line);

// Gives this lane's value to its simdgroup and waits for the others'. `lane_value` is null for a
// lane that is not there.
void give_to_lanes(const void* value, size_t size, int line);
const void* lane_value(uint lane);

// A number in observed memory: reads as its value, and can be assigned. (`auto x = memory[i]` would
// be the place, not the number: kernels have to name the type.)
template <class T>
struct Element {
  Array* array;
  ptrdiff_t index;
  T* operator&() const { return reinterpret_cast<T*>(array->data) + index; }
  operator T() const {
    on_read(*array, index, sizeof(T));
    return *&*this;
  }
  T operator=(T value) const {
    on_write(*array, index, sizeof(T));
    return *&*this = value;
  }
  T operator=(const Element& other) const { return *this = T(other); }
  T operator+=(T value) const { return *this = T(T(*this) + value); }
  T operator-=(T value) const { return *this = T(T(*this) - value); }
  T operator*=(T value) const { return *this = T(T(*this) * value); }
};

// The type of a number, also of one in observed memory.
template <class X>
struct Value {
  typedef X type;
};
template <class T>
struct Value<Element<T>> {
  typedef T type;
};
template <class X>
using value_of = typename Value<X>::type;

// Structures are handed out themselves: their bounds are checked, no more.
template <class T>
struct is_number : std::is_arithmetic<T> {};
template <class T>
decltype(auto) element(Array* array, ptrdiff_t index) {
  typedef std::remove_const_t<T> V;
  if constexpr (!is_number<V>::value) {
    if (index < 0 || size_t(index) >= array->bytes / sizeof(T))
      out_of_bounds(array->name, index, array->bytes / sizeof(T));
    return (reinterpret_cast<T*>(array->data)[index]);
  } else if constexpr (std::is_const_v<T>) {
    return V(Element<V>{array, index});
  } else {
    return Element<T>{array, index};
  }
}

// A pointer into an array of the device. As a plain pointer, for helpers that want one, its
// accesses are not observed.
template <class T>
struct Pointer {
  Array* array;
  ptrdiff_t offset = 0;
  decltype(auto) operator[](ptrdiff_t i) const { return element<T>(array, offset + i); }
  decltype(auto) operator*() const { return (*this)[0]; }
  Pointer operator+(ptrdiff_t i) const { return {array, offset + i}; }
  Pointer operator-(ptrdiff_t i) const { return {array, offset - i}; }
  Pointer& operator+=(ptrdiff_t i) { return *this = *this + i; }
  Pointer& operator++() { return *this += 1; }
  operator T*() const { return reinterpret_cast<T*>(array->data) + offset; }
};

// An array that a threadgroup shares, with a bound for each dimension.
template <class T, size_t N, size_t... Inner>
struct Shared {
  Array* array;
  ptrdiff_t offset = 0;
  decltype(auto) operator[](ptrdiff_t i) const {
    if (i < 0 || size_t(i) >= N) out_of_bounds(array->name, i, N);
    if constexpr (sizeof...(Inner) == 0) return element<T>(array, offset + i);
    else return Shared<T, Inner...>{array, offset + i * ptrdiff_t((Inner * ...))};
  }
  operator T*() const { return reinterpret_cast<T*>(array->data) + offset; }
};

template <class T, size_t... N>
Shared<T, N...> shared_array(uint id, const char* name) {
  return {&shared(id, name, sizeof(T), (N * ...))};
}

// The value that lane `from` gives; NaN, of a lane that is not there.
template <class T>
T lane(uint from, T value, int line) {
  give_to_lanes(&value, sizeof(T), line);
  const void* found = lane_value(from);
  if (found) __builtin_memcpy((void*)&value, found, sizeof(T));
  else __builtin_memset((void*)&value, 0xFF, sizeof(T));
  return value;
}

// The values of the lanes before `end`, combined in order.
template <class T, class F>
T fold(T value, T start, uint end, int line, F combine) {
  give_to_lanes(&value, sizeof(T), line);
  for (uint i = 0; i < end; ++i) {
    const void* found = lane_value(i);
    if (!found) continue;
    __builtin_memcpy((void*)&value, found, sizeof(T));
    start = combine(start, value);
  }
  return start;
}

}  // namespace gpu
