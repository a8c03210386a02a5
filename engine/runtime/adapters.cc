#include "engine/runtime/adapters.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>

#include "engine/base/format.h"
#include "engine/graph/run.h"
#include "engine/loader/peft.h"
#include "engine/tensor/huge_pages.h"
#include "kernels/lora.h"

namespace oar {
namespace {

// Shown of a long list of names.
constexpr size_t kShownNames = 8;
// What slots of one layer begin at a multiple of: as an allocation of any backend does.
constexpr uint64_t kApart = 256;

// `n` numbers as slots keep them.
std::vector<std::byte> stored(Format format, const float* from, int64_t n) {
  std::vector<std::byte> out(static_cast<size_t>(n * format.block_bytes()));
  if (format == Format::f32()) {
    std::memcpy(out.data(), from, out.size());
  } else {
    std::transform(from, from + n, reinterpret_cast<bf16*>(out.data()), [](float v) { return to_bf16(v); });
  }
  return out;
}

std::string module_of(const std::string& weight) {
  constexpr std::string_view kEnd = ".weight";
  return weight.ends_with(kEnd) ? weight.substr(0, weight.size() - kEnd.size()) : weight;
}

Status fits(const std::string& name, const PeftModule& module, const AdapterSite& site) {
  if (!site.basis.refusal.empty()) return unimplemented(cat("adapter of ", name, ": ", site.basis.refusal));
  const int64_t inputs = module.a.shape()[1], outputs = module.b.shape()[0];
  if (inputs != site.inputs || outputs != site.outputs)
    return invalid_argument(cat("the adapter is of another base model: it changes ", name, " of ", inputs,
                                " to ", outputs, " features, this model's has ", site.inputs, " to ",
                                site.outputs));
  return ok_status();
}

}  // namespace

Result<std::shared_ptr<Adapters>> Adapters::make(AdapterLayout layout, Run& run, ThreadPool& pool) {
  if (layout.sites.empty())
    return unimplemented("max_loras: the model has no linear layer that an adapter can change");
  std::shared_ptr<Adapters> out(new Adapters(std::move(layout), pool));
  const AdapterOptions& options = out->layout_.options;
  out->slots_->taken.assign(static_cast<size_t>(options.slots), false);
  const auto bytes = [&](int64_t columns) {
    const auto n =
        static_cast<uint64_t>(options.slots * options.rank * columns * options.format.block_bytes());
    return (n + kApart - 1) / kApart * kApart;
  };
  // One piece for all layers of a backend: each alone is too small for huge pages.
  struct Piece {
    uint64_t bytes = 0, at = 0;
    Buffer memory;
  };
  std::map<Backend*, Piece> pieces;
  for (const AdapterSite& site : out->layout_.sites)
    pieces[&run.state_backend(site.a)].bytes += bytes(site.inputs) + bytes(site.outputs);
  for (auto& [backend, piece] : pieces) {
    OAR_ASSIGN(piece.memory, backend->allocate(piece.bytes));
    prefer_huge_pages(piece.memory);
    if (backend->memory() != MemoryKind::kHost) out->device_ = backend;
  }
  const auto next = [&](Piece& piece, int64_t columns) {
    piece.at += bytes(columns);
    return piece.memory.slice(piece.at - bytes(columns), bytes(columns));
  };
  for (const AdapterSite& site : out->layout_.sites) {
    Backend& backend = run.state_backend(site.a);
    const std::vector<int32_t> none(static_cast<size_t>(options.slots), 0);
    OAR_ASSIGN(Buffer ranks, backend.allocate(none.size() * sizeof(int32_t)));
    OAR_RETURN_IF_ERROR(backend.upload(ranks.mutable_data(), none.data(), none.size() * sizeof(int32_t)));
    out->ranks_.push_back(std::move(ranks));
    out->a_.push_back(next(pieces[&backend], site.inputs));
    out->b_.push_back(next(pieces[&backend], site.outputs));
    run.bind_state(site.ranks, out->ranks_.back());
    run.bind_state(site.a, out->a_.back());
    run.bind_state(site.b, out->b_.back());
  }
  return out;
}

std::string Adapters::names() const {
  std::string out;
  size_t shown = 0;
  for (const auto& [name, entry] : by_name_) {
    if (shown++ == kShownNames) return cat(out, " and ", by_name_.size() - kShownNames, " more");
    out += cat(out.empty() ? "" : ", ", name);
  }
  return out.empty() ? "none" : out;
}

Status Adapters::no_adapter(std::string_view name) const {
  return {StatusCode::kNotFound, cat("there is no adapter '", name, "' (loaded: ", names(), ")"), "lora"};
}

Result<std::shared_ptr<const AdapterLease>> Adapters::take_slot(const std::string& name) {
  static std::atomic<uint64_t> loads{0};
  const std::lock_guard lock(slots_->mutex);
  const auto free = std::find(slots_->taken.begin(), slots_->taken.end(), false);
  if (free == slots_->taken.end()) return std::shared_ptr<const AdapterLease>();
  *free = true;
  const auto slot = static_cast<int32_t>(free - slots_->taken.begin());
  return std::shared_ptr<const AdapterLease>(new AdapterLease{++loads, slot, name},
                                             [slots = slots_](const AdapterLease* lease) {
                                               const std::lock_guard guard(slots->mutex);
                                               slots->taken[static_cast<size_t>(lease->slot)] = false;
                                               delete lease;
                                             });
}

void Adapters::put(std::vector<Waiting>& waiting, const Buffer& to, uint64_t at,
                   std::vector<std::byte> bytes) {
  if (device_ != nullptr) waiting.push_back({&to, at, std::move(bytes)});
  else std::memcpy(static_cast<std::byte*>(to.mutable_data()) + at, bytes.data(), bytes.size());
}

Status Adapters::upload() {
  if (!waits_.load(std::memory_order_acquire)) return ok_status();
  std::vector<Waiting> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(waiting_);
    waits_.store(false, std::memory_order_relaxed);
  }
  for (const Waiting& w : all)
    OAR_RETURN_IF_ERROR(device_->upload(static_cast<std::byte*>(w.to->mutable_data()) + w.at, w.bytes.data(),
                                        w.bytes.size()));
  return ok_status();
}

Status Adapters::write(int32_t slot, const PeftAdapter& adapter) {
  const AdapterOptions& options = layout_.options;
  const auto width = static_cast<uint64_t>(options.format.block_bytes());
  std::vector<Waiting> waiting;
  for (size_t s = 0; s < layout_.sites.size(); ++s) {
    const AdapterSite& site = layout_.sites[s];
    const auto put_rank = [&](int64_t rank) {
      const auto r = static_cast<int32_t>(rank);
      std::vector<std::byte> bytes(sizeof r);
      std::memcpy(bytes.data(), &r, sizeof r);
      put(waiting, ranks_[s], static_cast<uint64_t>(slot) * sizeof r, std::move(bytes));
    };
    put_rank(0);
    const auto module = adapter.modules.find(module_of(site.weight));
    if (module == adapter.modules.end()) continue;
    OAR_ASSIGN(const Tensor a, through(site.basis.inputs, module->second.a, pool_));
    OAR_ASSIGN(const Tensor b, through(site.basis.outputs, module->second.b, pool_));
    const int64_t r = a.shape()[0];
    const auto row_at = [&](int64_t i, int64_t n) {
      return static_cast<uint64_t>((slot * options.rank + i) * n) * width;
    };
    for (int64_t i = 0; i < r; ++i) {
      put(waiting, a_[s], row_at(i, site.inputs),
          stored(options.format, a.values<float>().data() + i * site.inputs, site.inputs));
    }
    // The other way round, with its factor, in panels (kernels/lora.h): one piece, zero behind its ranks.
    const int64_t n = site.outputs;
    std::vector<float> turned(static_cast<size_t>(options.rank * n));
    for (int64_t i = 0; i < r; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        turned[static_cast<size_t>(lora_b_at(options.rank, n, i, j))] = static_cast<float>(
            module->second.factor * static_cast<double>(b.values<float>()[static_cast<size_t>(j * r + i)]));
      }
    }
    if (!std::all_of(turned.begin(), turned.end(), [](float v) { return std::isfinite(v); }))
      return invalid_argument(
          cat("adapter of ", module->first, ": B times lora_alpha / r is too large for f32"));
    put(waiting, b_[s], row_at(0, n), stored(options.format, turned.data(), options.rank * n));
    put_rank(r);
  }
  if (waiting.empty()) return ok_status();
  const std::lock_guard lock(mutex_);
  std::move(waiting.begin(), waiting.end(), std::back_inserter(waiting_));
  waits_.store(true, std::memory_order_release);
  return ok_status();
}

Status Adapters::check_new(const std::string& name) const {
  if (name.empty()) return invalid_argument("the adapter's name is empty", "lora_name");
  if (!by_name_.contains(name)) return ok_status();
  return {StatusCode::kAlreadyExists, cat("an adapter '", name, "' is loaded; unload it first"), "lora_name"};
}

Result<AdapterInfo> Adapters::load(const std::string& name, const std::string& folder) {
  {
    const std::lock_guard lock(mutex_);
    OAR_RETURN_IF_ERROR(check_new(name));
  }
  OAR_ASSIGN(PeftAdapter adapter, load_peft_adapter(folder));
  OAR_RETURN_IF_ERROR(call_as_base(adapter, module_of(layout_.sites.front().weight)).status());
  return load(name, adapter, folder);
}

Result<AdapterInfo> Adapters::load(const std::string& name, const PeftAdapter& adapter,
                                   const std::string& path) {
  if (adapter.rank > layout_.options.rank)
    return invalid_argument(cat("the adapter's rank ", adapter.rank, " is above max_lora_rank ",
                                layout_.options.rank, "; serve the model with a larger one"),
                            "max_lora_rank");
  for (const auto& [module, pair] : adapter.modules) {
    bool found = false;
    for (const AdapterSite& site : layout_.sites) {
      if (module_of(site.weight) != module) continue;
      found = true;
      OAR_RETURN_IF_ERROR(fits(module, pair, site));
    }
    if (!found)
      return invalid_argument(cat("the adapter is of another base model: it changes ", module,
                                  ", which is no linear layer of this model; its first is ",
                                  module_of(layout_.sites.front().weight)));
  }
  OAR_ASSIGN(auto lease, take_slot(name));
  if (lease == nullptr) {
    const std::lock_guard lock(mutex_);
    return resource_exhausted(cat("all ", slots(), " slots of adapters are held (loaded: ", names(),
                                  "); unload one, or raise max_loras"));
  }
  OAR_RETURN_IF_ERROR(write(lease->slot, adapter));
  const std::lock_guard lock(mutex_);
  OAR_RETURN_IF_ERROR(check_new(name));
  AdapterInfo info{name, path, adapter.base, adapter.rank, lease->load};
  by_name_.emplace(name, Entry{info, std::move(lease)});
  return info;
}

Status Adapters::unload(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return no_adapter(name);
  by_name_.erase(it);
  return ok_status();
}

Result<std::shared_ptr<const AdapterLease>> Adapters::lease(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return no_adapter(name);
  return it->second.lease;
}

std::shared_ptr<const AdapterLease> Adapters::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second.lease;
}

std::vector<AdapterInfo> Adapters::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<AdapterInfo> out;
  for (const auto& [name, entry] : by_name_) out.push_back(entry.info);
  return out;
}

}  // namespace oar
