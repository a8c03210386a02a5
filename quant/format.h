// Format: how a tensor's stored bytes become numbers, and nothing else. A row of a tensor is a run of equal
// blocks; a plain format's block is one scalar, a quantized format's block is a group of elements with its
// scales. The list of formats is in quant/CMakeLists.txt, one header each in quant/formats/. What it is not:
// a quantization scheme (which format goes where), nor fast: kernels/ has the fast readers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "quant/dtype.h"

namespace oar {

// Files of every kind we read are little-endian and blocks are read in place.
static_assert(std::endian::native == std::endian::little, "Oar runs on little-endian machines");

struct FormatInfo {
  const char* name;       // "bf16", "q8_0"; unique, lower case
  DType scalar;           // the element of a plain format; kBytes for block formats
  int block_elems;        // consecutive elements of a row that share one block
  int block_bytes;        // stored size of a block
  bool plain;             // one scalar per element, nothing shared
  float bits_per_weight;  // 8 * block_bytes / block_elems
  int alignment;  // what the C++ type of a block needs; mapped tensors not so aligned are copied at load
  void (*decode)(const void* blocks, int64_t nblocks, float* out);  // out: nblocks * block_elems
  void (*encode)(const float* in, int64_t nblocks, void* blocks);   // null where only decoding is offered
};

// A cheap value: one pointer to a FormatInfo with static storage. Default: f32.
class Format {
 public:
  Format();
  explicit constexpr Format(const FormatInfo* info) : info_(info) {}

  // The plain format of a dtype; kBytes and the 4-bit integers have none and abort (they name no storage).
  static Format of(DType dtype);
  static Format f32();
  static Format f16();
  static Format bf16();
  static Format i32();
  // By name; nullopt when no such format is registered.
  static std::optional<Format> find(std::string_view name);

  const FormatInfo& info() const { return *info_; }
  const char* name() const { return info_->name; }
  bool plain() const { return info_->plain; }
  DType dtype() const { return info_->scalar; }
  int block_elems() const { return info_->block_elems; }
  int block_bytes() const { return info_->block_bytes; }

  // Bytes of a row of `cols` elements; nullopt when cols is negative, is no multiple of the block, or the
  // size overflows.
  std::optional<int64_t> row_bytes(int64_t cols) const;

  bool operator==(const Format& other) const { return info_ == other.info_; }

 private:
  const FormatInfo* info_;
};

// Every registered format, plain ones first.
std::span<const FormatInfo* const> all_formats();

namespace detail {

template <class Block, int kElems, auto kDecode>
void decode_blocks(const void* blocks, int64_t nblocks, float* out) {
  const Block* b = static_cast<const Block*>(blocks);
  for (int64_t i = 0; i < nblocks; ++i) kDecode(b[i], out + i * kElems);
}

template <class Block, int kElems, auto kEncode>
void encode_blocks(const float* in, int64_t nblocks, void* blocks) {
  Block* b = static_cast<Block*>(blocks);
  for (int64_t i = 0; i < nblocks; ++i) kEncode(in + i * kElems, b[i]);
}

}  // namespace detail

// What a formats/x.h says about itself. kDecode: void(const Block&, float out[kElems]); kEncode: void(const
// float in[kElems], Block&), or nullptr.
template <class Block, int kElems, auto kDecode, auto kEncode>
constexpr FormatInfo block_format(const char* name) {
  FormatInfo info{name,
                  DType::kBytes,
                  kElems,
                  static_cast<int>(sizeof(Block)),
                  false,
                  8.0f * sizeof(Block) / kElems,
                  static_cast<int>(alignof(Block)),
                  &detail::decode_blocks<Block, kElems, kDecode>,
                  nullptr};
  if constexpr (!std::is_same_v<decltype(kEncode), std::nullptr_t>) {
    info.encode = &detail::encode_blocks<Block, kElems, kEncode>;
  }
  return info;
}

}  // namespace oar
