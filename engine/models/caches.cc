// What layers keep of a sequence, from the config alone: for who asks before there are weights.
#include <algorithm>

#include "engine/models/model.h"
#include "kernels/state.h"
#include "kernels/state_scan.h"

namespace oar {
namespace {

// As the op has it: heads that are tiled over key heads have a key each (delta_rule.cc).
StateScanShape scan_shape(const ScanConfig& s) {
  StateScanShape shape;
  shape.heads = static_cast<int32_t>(s.heads);
  shape.key_heads = static_cast<int32_t>(s.tiled ? s.heads : s.key_heads);
  shape.key_dim = static_cast<int32_t>(s.key_dim);
  shape.value_dim = static_cast<int32_t>(s.value_dim);
  return shape;
}

}  // namespace

uint64_t CachedLayer::border_bytes(const ModelConfig& c) const {
  if (convolution == 0) return 0;
  const uint64_t rows = state_border_bytes(std::max<int64_t>(1, (c.conv_kernel - 1) * convolution));
  return rows + (scan ? state_border_bytes(state_scan_border(scan_shape(c.scan))) : 0);
}

uint64_t CachedLayer::open_bytes(const ModelConfig& c, int64_t page_tokens) const {
  if (convolution == 0) return 0;
  return state_rows_bytes(convolution + (scan ? state_scan_row(scan_shape(c.scan)) : 0), page_tokens);
}

std::vector<CachedLayer> cached_layers(const ModelConfig& c) {
  const bool scans = c.scan.heads > 0;
  std::vector<CachedLayer> out;
  for (int64_t n = 0; n < c.layers; ++n) {
    CachedLayer kept{.layer = n};
    const bool all = c.recurrent.empty() && c.kinds.empty();  // layers that scan attend as well
    const bool attends =
        c.kinds.empty() ? !c.is_recurrent(n) : c.kinds[static_cast<size_t>(n)] == LayerKind::kAttention;
    if (attends && c.kv_layer(n) == n) {
      kept.heads = c.head_shape(n);
      kept.latent = c.latent.rank;
      kept.window = c.windows[static_cast<size_t>(n)];
    }
    if (c.is_recurrent(n) || (all && scans)) {
      const ScanConfig& s = c.scan;
      kept.scan = scans;  // behind a convolution of queries or C, keys or B, and values
      kept.convolution = scans ? 2 * s.key_heads * s.key_dim + s.heads * s.value_dim : c.width;
    }
    if (kept.heads.kv_heads > 0 || kept.convolution > 0) out.push_back(kept);
  }
  return out;
}

}  // namespace oar
