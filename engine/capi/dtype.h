// Element types of the C interface, and tensors as it hands them out.
#pragma once

#include <optional>
#include <utility>

#include "engine/capi/oar.h"
#include "engine/tensor/tensor.h"

namespace oar::capi {

inline constexpr std::pair<oar_dtype, DType> kDTypes[] = {
    {OAR_F32, DType::kF32},   {OAR_F64, DType::kF64}, {OAR_F16, DType::kF16}, {OAR_BF16, DType::kBF16},
    {OAR_BOOL, DType::kBool}, {OAR_I8, DType::kI8},   {OAR_U8, DType::kU8},   {OAR_I16, DType::kI16},
    {OAR_U16, DType::kU16},   {OAR_I32, DType::kI32}, {OAR_U32, DType::kU32}, {OAR_I64, DType::kI64},
    {OAR_U64, DType::kU64}};

// OAR_DTYPE_NONE for what has no counterpart (strings).
inline oar_dtype to_c(DType dtype) {
  for (const auto& [c, d] : kDTypes) {
    if (d == dtype) return c;
  }
  return OAR_DTYPE_NONE;
}
inline std::optional<DType> from_c(int32_t dtype) {
  for (const auto& [c, d] : kDTypes) {
    if (c == dtype) return d;
  }
  return std::nullopt;
}

}  // namespace oar::capi
