// The registry of storage formats, made from the list in quant/CMakeLists.txt.
#include "quant/format.h"

#include <cstdlib>

#include "oar_format_headers.inc"

namespace oar {
namespace {

constexpr const FormatInfo* kFormats[] = {
#define OAR_REGISTER(name) &formats::name::kInfo,
#include "oar_formats.inc"
#undef OAR_REGISTER
};

}  // namespace

std::span<const FormatInfo* const> all_formats() { return kFormats; }

Format::Format() : info_(&formats::f32::kInfo) {}
Format Format::f32() { return Format(&formats::f32::kInfo); }
Format Format::f16() { return Format(&formats::f16::kInfo); }
Format Format::bf16() { return Format(&formats::bf16::kInfo); }
Format Format::i32() { return Format(&formats::i32::kInfo); }

Format Format::of(DType dtype) {
  for (const FormatInfo* f : kFormats) {
    if (f->plain && f->scalar == dtype) return Format(f);
  }
  std::abort();
}

std::optional<Format> Format::find(std::string_view name) {
  // The members of two families of ours that GGUF defined first.
  if (name == "i8_g32") name = formats::q8_0::kInfo.name;
  if (name == "i4_g32") name = formats::q4_0::kInfo.name;
  for (const FormatInfo* f : kFormats) {
    if (name == f->name) return Format(f);
  }
  return std::nullopt;
}

std::optional<int64_t> Format::row_bytes(int64_t cols) const {
  if (cols < 0 || cols % info_->block_elems != 0) return std::nullopt;
  int64_t bytes;
  if (__builtin_mul_overflow(cols / info_->block_elems, static_cast<int64_t>(info_->block_bytes), &bytes) ||
      __builtin_add_overflow(bytes, static_cast<int64_t>(info_->head_bytes), &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace oar
