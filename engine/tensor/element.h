// Elements on the host, of every dtype: what each is stored as, what it is computed in, and one switch from a
// dtype at run time to a C++ type. For evaluation of ordinary models, where any dtype may meet any op;
// kernels know their types and need none of this.
//
// Storage: one element per sizeof(T) bytes, also for types narrower than a byte (i4, u4, i2, u2, e2m1), so
// that every tensor can be indexed. Strings are std::string objects owned by the buffer.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "engine/tensor/tensor.h"

namespace oar {

template <>
struct DTypeOf<std::string> {
  static constexpr DType value = DType::kString;
};

// The dense host format of a dtype, kBytes excepted.
Format element_format(DType dtype);
inline Tensor must(Result<Tensor> t) { return std::move(t).value(); }

// Bytes of such a tensor; RESOURCE_EXHAUSTED beyond `limit`.
Result<uint64_t> element_bytes(const Shape& shape, DType dtype, uint64_t limit);

// New host memory, uninitialized unless `zeroed` (strings are always empty). RESOURCE_EXHAUSTED beyond
// `limit` bytes, which a hostile file may ask for.
Result<Tensor> allocate_elements(const Shape& shape, DType dtype, uint64_t limit = uint64_t{1} << 36,
                                 bool zeroed = true);

// A float beyond an integer's range saturates and NaN becomes 0: C++ leaves both undefined.
template <class T>
T saturate_cast(double x) {
  static_assert(std::is_integral_v<T>);
  if (std::isnan(x)) return 0;
  // The largest T may round up to 2^n in double, so compare with 2^n itself.
  if (x >= std::ldexp(1.0, std::numeric_limits<T>::digits)) return std::numeric_limits<T>::max();
  if (x <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return static_cast<T>(x);
}

// load(): storage -> what is computed with; store(): back, rounding to nearest even or, for narrow integers,
// keeping the low bits.
template <class T>
struct Element {
  using Compute = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
#define OAR_FLOAT_ELEMENT(T, encode)              \
  template <>                                     \
  struct Element<T> {                             \
    using Compute = float;                        \
    static float load(T x) { return to_f32(x); }  \
    static T store(float x) { return encode(x); } \
  }
OAR_FLOAT_ELEMENT(f16, to_f16);
OAR_FLOAT_ELEMENT(bf16, to_bf16);
OAR_FLOAT_ELEMENT(e4m3, to_e4m3);
OAR_FLOAT_ELEMENT(e5m2, to_e5m2);
OAR_FLOAT_ELEMENT(e4m3fnuz, to_e4m3fnuz);
OAR_FLOAT_ELEMENT(e5m2fnuz, to_e5m2fnuz);
OAR_FLOAT_ELEMENT(e2m1, to_e2m1);
#undef OAR_FLOAT_ELEMENT
// Scales round up to a power of two here; a cast with another rounding says so itself.
template <>
struct Element<e8m0> {
  using Compute = float;
  static float load(e8m0 x) { return to_f32(x); }
  static e8m0 store(float x);
};
#define OAR_NARROW_ELEMENT(T, C, shift)                                                       \
  template <>                                                                                 \
  struct Element<T> {                                                                         \
    using Compute = C;                                                                        \
    static C load(T x) { return x.value; }                                                    \
    static T store(C x) {                                                                     \
      return {static_cast<C>(static_cast<C>(static_cast<uint8_t>(x) << (shift)) >> (shift))}; \
    }                                                                                         \
  }
OAR_NARROW_ELEMENT(i4, int8_t, 4);
OAR_NARROW_ELEMENT(u4, uint8_t, 4);
OAR_NARROW_ELEMENT(i2, int8_t, 6);
OAR_NARROW_ELEMENT(u2, uint8_t, 6);
#undef OAR_NARROW_ELEMENT

template <class T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>{}) for the storage type of `dtype`. bool is stored as uint8_t, 0 or 1. False when the
// dtype is not of the group.
template <class F>
bool dispatch_integer(DType t, F&& f) {
  switch (t) {
    case DType::kI8: f(TypeTag<int8_t>{}); return true;
    case DType::kU8: f(TypeTag<uint8_t>{}); return true;
    case DType::kI16: f(TypeTag<int16_t>{}); return true;
    case DType::kU16: f(TypeTag<uint16_t>{}); return true;
    case DType::kI32: f(TypeTag<int32_t>{}); return true;
    case DType::kU32: f(TypeTag<uint32_t>{}); return true;
    case DType::kI64: f(TypeTag<int64_t>{}); return true;
    case DType::kU64: f(TypeTag<uint64_t>{}); return true;
    default: return false;
  }
}
template <class F>
bool dispatch_float(DType t, F&& f) {
  switch (t) {
    case DType::kF32: f(TypeTag<float>{}); return true;
    case DType::kF64: f(TypeTag<double>{}); return true;
    case DType::kF16: f(TypeTag<f16>{}); return true;
    case DType::kBF16: f(TypeTag<bf16>{}); return true;
    default: return false;
  }
}
template <class F>
bool dispatch_numeric(DType t, F&& f) {
  return dispatch_float(t, f) || dispatch_integer(t, f);
}
template <class F>
bool dispatch_narrow(DType t, F&& f) {
  switch (t) {
    case DType::kE4M3: f(TypeTag<e4m3>{}); return true;
    case DType::kE5M2: f(TypeTag<e5m2>{}); return true;
    case DType::kE4M3Fnuz: f(TypeTag<e4m3fnuz>{}); return true;
    case DType::kE5M2Fnuz: f(TypeTag<e5m2fnuz>{}); return true;
    case DType::kE8M0: f(TypeTag<e8m0>{}); return true;
    case DType::kE2M1: f(TypeTag<e2m1>{}); return true;
    case DType::kI4: f(TypeTag<i4>{}); return true;
    case DType::kU4: f(TypeTag<u4>{}); return true;
    case DType::kI2: f(TypeTag<i2>{}); return true;
    case DType::kU2: f(TypeTag<u2>{}); return true;
    default: return false;
  }
}
// Every dtype that holds numbers, bool included.
template <class F>
bool dispatch_number(DType t, F&& f) {
  if (t == DType::kBool) return f(TypeTag<uint8_t>{}), true;
  return dispatch_numeric(t, f) || dispatch_narrow(t, f);
}
// For moving elements without looking at them: an unsigned integer of the element's size, or std::string.
template <class F>
void dispatch_move(const Tensor& t, F&& f) {
  if (t.format().dtype() == DType::kString) return f(TypeTag<std::string>{});
  switch (t.format().block_bytes()) {
    case 1: return f(TypeTag<uint8_t>{});
    case 2: return f(TypeTag<uint16_t>{});
    case 4: return f(TypeTag<uint32_t>{});
    default: return f(TypeTag<uint64_t>{});
  }
}

// The elements, unchecked: the caller dispatched on the dtype.
template <class T>
const T* elements(const Tensor& t) {
  return static_cast<const T*>(t.data());
}
template <class T>
T* mutable_elements(const Tensor& t) {
  return static_cast<T*>(t.mutable_data());
}

// One element as a number; strings abort. For small tensors: axes, shapes, scalars.
double element_as_double(const Tensor& t, int64_t index);
int64_t element_as_int(const Tensor& t, int64_t index);

}  // namespace oar
