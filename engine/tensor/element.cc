#include "engine/tensor/element.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/base/format.h"

namespace oar {
namespace {

template <class T>
void decode(const void* row, int64_t first, int64_t n, float* out) {
  const T* p = static_cast<const T*>(row) + first;
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(Element<T>::load(p[i]));
}

template <class T>
constexpr FormatInfo byte_format(const char* name, DType dtype) {
  return {name,       dtype,  1, static_cast<int>(sizeof(T)), 0, true, 8.0f, static_cast<int>(alignof(T)),
          &decode<T>, nullptr};
}

void decode_nothing(const void*, int64_t, int64_t, float*) { OAR_CHECK(false, "strings are not numbers"); }

constexpr FormatInfo kI4 = byte_format<i4>("i4", DType::kI4);
constexpr FormatInfo kU4 = byte_format<u4>("u4", DType::kU4);
constexpr FormatInfo kI2 = byte_format<i2>("i2", DType::kI2);
constexpr FormatInfo kU2 = byte_format<u2>("u2", DType::kU2);
constexpr FormatInfo kE2M1 = byte_format<e2m1>("e2m1", DType::kE2M1);
constexpr FormatInfo kE8M0 = byte_format<e8m0>("e8m0", DType::kE8M0);
constexpr FormatInfo kE4M3Fnuz = byte_format<e4m3fnuz>("e4m3fnuz", DType::kE4M3Fnuz);
constexpr FormatInfo kE5M2Fnuz = byte_format<e5m2fnuz>("e5m2fnuz", DType::kE5M2Fnuz);
constexpr FormatInfo kString = {"string",
                                DType::kString,
                                1,
                                static_cast<int>(sizeof(std::string)),
                                0,
                                true,
                                8.0f * sizeof(std::string),
                                static_cast<int>(alignof(std::string)),
                                &decode_nothing,
                                nullptr};

}  // namespace

e8m0 Element<e8m0>::store(float x) {
  if (std::isnan(x) || x < 0) return {0xff};
  if (x == 0) return {0};
  if (std::isinf(x)) return {0xfe};
  int e = 0;
  const float m = std::frexp(x, &e);  // x = m * 2^e, m in [0.5, 1)
  const int power = m == 0.5f ? e - 1 : e;
  return {static_cast<uint8_t>(std::clamp(power + 127, 0, 254))};
}

Format element_format(DType dtype) {
  switch (dtype) {
    case DType::kI4: return Format(&kI4);
    case DType::kU4: return Format(&kU4);
    case DType::kI2: return Format(&kI2);
    case DType::kU2: return Format(&kU2);
    case DType::kE2M1: return Format(&kE2M1);
    case DType::kE8M0: return Format(&kE8M0);
    case DType::kE4M3Fnuz: return Format(&kE4M3Fnuz);
    case DType::kE5M2Fnuz: return Format(&kE5M2Fnuz);
    case DType::kString: return Format(&kString);
    default: return Format::of(dtype);
  }
}

Result<uint64_t> element_bytes(const Shape& shape, DType dtype, uint64_t limit) {
  const Format format = element_format(dtype);
  OAR_ASSIGN(const int64_t bytes, tensor_bytes(shape, format));
  if (static_cast<uint64_t>(bytes) > limit) {
    return resource_exhausted(cat("a tensor ", shape.to_string(), " of ", format.name(), " takes ",
                                  format_bytes(static_cast<uint64_t>(bytes)), "; the limit is ",
                                  format_bytes(limit)));
  }
  return static_cast<uint64_t>(bytes);
}

Result<Tensor> allocate_elements(const Shape& shape, DType dtype, uint64_t limit, bool zeroed) {
  const Format format = element_format(dtype);
  OAR_ASSIGN(const uint64_t bytes, element_bytes(shape, dtype, limit));
  if (dtype != DType::kString) return zeroed ? Tensor::zeros(shape, format) : Tensor::allocate(shape, format);
  auto strings = std::make_shared<std::vector<std::string>>(static_cast<size_t>(shape.numel()));
  void* data = strings->data();
  return Tensor::make(shape, format, Buffer::wrap(data, bytes, std::move(strings)));
}

double element_as_double(const Tensor& t, int64_t index) {
  double value = 0;
  const bool number = dispatch_number(t.format().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    value = static_cast<double>(Element<T>::load(elements<T>(t)[index]));
  });
  OAR_CHECK(number, "not a number");
  return value;
}

int64_t element_as_int(const Tensor& t, int64_t index) {
  int64_t value = 0;
  const bool number = dispatch_number(t.format().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = Element<T>::load(elements<T>(t)[index]);
    if constexpr (std::is_floating_point_v<decltype(x)>) value = saturate_cast<int64_t>(x);
    else value = static_cast<int64_t>(x);
  });
  OAR_CHECK(number, "not a number");
  return value;
}

}  // namespace oar
