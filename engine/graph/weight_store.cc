#include "engine/graph/weight_store.h"

#include <set>

#include "engine/base/format.h"

namespace oar {

Result<const StoredWeight*> WeightStore::get(const std::string& key,
                                             const std::function<Result<StoredWeight>()>& make) {
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& slot = entries_[key];
    if (!slot) slot = std::make_unique<Entry>();
    entry = slot.get();
  }
  const std::lock_guard lock(entry->making);
  if (!entry->made) {
    OAR_ASSIGN(entry->weight, make());
    entry->made = true;
  }
  return &entry->weight;
}

Result<StoredWeight> WeightStore::place(const Buffer& host, bool copied) const {
  StoredWeight out{host, host.size(), copied};
  if (backend_.memory() == MemoryKind::kHost) return out;
  out.copied = true;
  OAR_ASSIGN(out.buffer, backend_.allocate(std::max<uint64_t>(host.size(), 4)));
  OAR_RETURN_IF_ERROR(backend_.upload(out.buffer.mutable_data(), host.data(), host.size()));
  host.release_pages();
  return out;
}

uint64_t WeightStore::sum(bool copied) const {
  const std::lock_guard lock(mutex_);
  std::set<const void*> seen;
  uint64_t bytes = 0;
  for (const auto& [key, entry] : entries_) {
    const std::lock_guard made(entry->making);
    const StoredWeight& w = entry->weight;
    if (entry->made && w.copied == copied && seen.insert(w.data()).second) bytes += w.bytes;
  }
  return bytes;
}

uint64_t WeightStore::copied_bytes() const { return sum(true); }
uint64_t WeightStore::in_place_bytes() const { return sum(false); }

std::string weight_key(const Graph& graph, ValueId value) {
  const Value& v = graph.value(value);
  if (v.kind != ValueKind::kConstant) return cat("%", value);
  const Tensor& t = v.constant;
  return cat(t.format().name(), t.shape().to_string(), "@", reinterpret_cast<uintptr_t>(t.data()));
}

}  // namespace oar
