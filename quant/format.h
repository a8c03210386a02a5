// Format: how a tensor's stored bytes become numbers, and nothing else. A row of a tensor is an optional
// head, which the whole row shares (a scale per channel, say), and a run of equal blocks; a plain format's
// block is one scalar, a quantized format's block is a group of elements with its scales. Rows do not know
// each other: any selection of rows of a tensor is a tensor, and tensors of one width and format may be
// stacked. The list of formats is in quant/CMakeLists.txt, one header each in quant/formats/. What it is not:
// a quantization scheme (which format goes where), nor fast: kernels/ has the fast readers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "quant/dtype.h"

namespace oar {

// Files of every kind we read are little-endian and blocks are read in place.
static_assert(std::endian::native == std::endian::little, "Oar runs on little-endian machines");

struct FormatInfo {
  const char* name;  // "bf16", "q8_0"; unique, lower case
  DType scalar;      // the element of a plain format; kBytes for all others
  int block_elems;   // consecutive elements of a row that share one block
  int block_bytes;   // stored size of a block
  int head_bytes;  // in front of the blocks of each row; 0 in pure block formats, whose rows are blocks alone
  bool plain;      // one scalar per element, nothing shared
  float bits_per_weight;  // 8 * block_bytes / block_elems; the head's 8 * head_bytes / cols comes on top
  int alignment;  // what the C++ type of a block needs; mapped tensors not so aligned are copied at load
  // Blocks [first, first + nblocks) of a row to out, nblocks * block_elems numbers. Where head_bytes is 0,
  // `row` may be any run of blocks, several rows of a tensor included.
  void (*decode)(const void* row, int64_t first, int64_t nblocks, float* out);
  // A whole row of nblocks blocks, rounded to nearest; null where only decoding is offered. Where head_bytes
  // is 0, several rows at once.
  void (*encode)(const float* in, int64_t nblocks, void* row);
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
  // By name; nullopt when no such format is registered. "i8_g32" and "i4_g32" are other names of q8_0 and
  // q4_0.
  static std::optional<Format> find(std::string_view name);

  const FormatInfo& info() const { return *info_; }
  const char* name() const { return info_->name; }
  bool plain() const { return info_->plain; }
  DType dtype() const { return info_->scalar; }
  int block_elems() const { return info_->block_elems; }
  int block_bytes() const { return info_->block_bytes; }
  int head_bytes() const { return info_->head_bytes; }

  // Bytes of a row of `cols` elements; nullopt when cols is negative, is no multiple of the block, or the
  // size overflows.
  std::optional<int64_t> row_bytes(int64_t cols) const;
  // The same for a row that is known to exist, as a kernel's operands are.
  int64_t stride(int64_t cols) const {
    return info_->head_bytes + cols / info_->block_elems * info_->block_bytes;
  }
  // Stored bits per element of a row of `cols`, its head included.
  double bits_per_weight(int64_t cols) const {
    return static_cast<double>(info_->bits_per_weight) + 8.0 * info_->head_bytes / static_cast<double>(cols);
  }

  // One row of `cols` elements, a multiple of the block; row: stride(cols) bytes.
  void decode_row(const void* row, int64_t cols, float* out) const {
    info_->decode(row, 0, cols / info_->block_elems, out);
  }
  // Only where info().encode is not null.
  void encode_row(const float* in, int64_t cols, void* row) const {
    info_->encode(in, cols / info_->block_elems, row);
  }

  bool operator==(const Format& other) const { return info_ == other.info_; }

 private:
  const FormatInfo* info_;
};

// Every registered format, plain ones first.
std::span<const FormatInfo* const> all_formats();

namespace detail {

struct NoHead {};

// A row's head sits at any address: it is read and written by copy.
template <class Head>
OAR_HD Head load_head(const void* row) {
  Head head;
  memcpy(&head, row, sizeof head);
  return head;
}

template <class Head, class Block, int kElems, auto kDecode>
OAR_HD void decode_blocks(const void* row, int64_t first, int64_t nblocks, float* out) {
  if constexpr (std::is_same_v<Head, NoHead>) {
    const Block* b = static_cast<const Block*>(row) + first;
    for (int64_t i = 0; i < nblocks; ++i) kDecode(b[i], out + i * kElems);
  } else {
    const Head head = load_head<Head>(row);
    const Block* b = reinterpret_cast<const Block*>(static_cast<const char*>(row) + sizeof(Head)) + first;
    for (int64_t i = 0; i < nblocks; ++i) kDecode(head, b[i], out + i * kElems);
  }
}

template <class Block, int kElems, auto kEncode>
void encode_blocks(const float* in, int64_t nblocks, void* blocks) {
  Block* b = static_cast<Block*>(blocks);
  for (int64_t i = 0; i < nblocks; ++i) kEncode(in + i * kElems, b[i]);
}

template <class Head, class Block, auto kEncode>
void encode_headed(const float* in, int64_t nblocks, void* row) {
  Head head{};
  kEncode(in, nblocks, head, reinterpret_cast<Block*>(static_cast<char*>(row) + sizeof head));
  memcpy(row, &head, sizeof head);
}

template <class Head, class Block, int kElems, auto kDecode>
constexpr FormatInfo format_info(const char* name) {
  return {name,
          DType::kBytes,
          kElems,
          static_cast<int>(sizeof(Block)),
          std::is_same_v<Head, NoHead> ? 0 : static_cast<int>(sizeof(Head)),
          false,
          8.0f * sizeof(Block) / kElems,
          static_cast<int>(alignof(Block)),
          &decode_blocks<Head, Block, kElems, kDecode>,
          nullptr};
}

}  // namespace detail

// What a formats/x.h says about itself. kDecode: void(const Block&, float out[kElems]); kEncode: void(const
// float in[kElems], Block&), or nullptr.
template <class Block, int kElems, auto kDecode, auto kEncode>
constexpr FormatInfo block_format(const char* name) {
  FormatInfo info = detail::format_info<detail::NoHead, Block, kElems, kDecode>(name);
  if constexpr (!std::is_same_v<decltype(kEncode), std::nullptr_t>) {
    info.encode = &detail::encode_blocks<Block, kElems, kEncode>;
  }
  return info;
}

// The same for rows with a head. kDecode: void(const Head&, const Block&, float out[kElems]); kEncode:
// void(const float* in, int64_t nblocks, Head&, Block*), a row at a time, or nullptr. The blocks lie right
// behind the head, and rows right behind each other: sizeof(Head) is a multiple of alignof(Block).
template <class Head, class Block, int kElems, auto kDecode, auto kEncode>
constexpr FormatInfo row_format(const char* name) {
  static_assert(std::is_trivially_copyable_v<Head> && sizeof(Head) % alignof(Block) == 0);
  FormatInfo info = detail::format_info<Head, Block, kElems, kDecode>(name);
  if constexpr (!std::is_same_v<decltype(kEncode), std::nullptr_t>) {
    info.encode = &detail::encode_headed<Head, Block, kEncode>;
  }
  return info;
}

}  // namespace oar
