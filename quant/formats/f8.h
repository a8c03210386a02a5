// What the 8-bit float formats share: the largest finite value, and the cast that saturates.
#pragma once

#include "quant/dtype.h"

namespace oar::formats {

inline OAR_HD void cast_f8(float x, oar::e4m3& out) { out = to_e4m3(x); }
inline OAR_HD void cast_f8(float x, oar::e5m2& out) { out = to_e5m2(x); }

template <class T>
inline constexpr float kF8Max = 0.0f;
template <>
inline constexpr float kF8Max<oar::e4m3> = 448.0f;
template <>
inline constexpr float kF8Max<oar::e5m2> = 57344.0f;

}  // namespace oar::formats
