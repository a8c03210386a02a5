#include "engine/runtime/adapters.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "engine/base/format.h"
#include "engine/graph/run.h"
#include "engine/loader/peft.h"

namespace oar {
namespace {

// Shown of a long list of names.
constexpr size_t kShownNames = 8;

// Row `row` of a slot, `n` numbers.
void put_row(const Buffer& slots, Format format, int64_t row, const float* from, int64_t n) {
  if (format == Format::f32()) {
    std::copy_n(from, n, static_cast<float*>(slots.mutable_data()) + row * n);
    return;
  }
  bf16* to = static_cast<bf16*>(slots.mutable_data()) + row * n;
  std::transform(from, from + n, to, [](float v) { return to_bf16(v); });
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
  for (const AdapterSite& site : out->layout_.sites) {
    const auto bytes = [&](int64_t columns) {
      return static_cast<uint64_t>(options.slots * options.rank * columns * options.format.block_bytes());
    };
    OAR_ASSIGN(Buffer ranks, Buffer::allocate(static_cast<uint64_t>(options.slots) * sizeof(int32_t)));
    OAR_ASSIGN(Buffer a, Buffer::allocate(bytes(site.inputs)));
    OAR_ASSIGN(Buffer b, Buffer::allocate(bytes(site.outputs)));
    std::memset(ranks.mutable_data(), 0, ranks.size());
    run.bind_state(site.ranks, ranks);
    run.bind_state(site.a, a);
    run.bind_state(site.b, b);
    out->ranks_.push_back(std::move(ranks));
    out->a_.push_back(std::move(a));
    out->b_.push_back(std::move(b));
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

Result<std::shared_ptr<const AdapterLease>> Adapters::take_slot() {
  static std::atomic<uint64_t> loads{0};
  const std::lock_guard lock(slots_->mutex);
  const auto free = std::find(slots_->taken.begin(), slots_->taken.end(), false);
  if (free == slots_->taken.end()) return std::shared_ptr<const AdapterLease>();
  *free = true;
  const auto slot = static_cast<int32_t>(free - slots_->taken.begin());
  return std::shared_ptr<const AdapterLease>(new AdapterLease{++loads, slot},
                                             [slots = slots_](const AdapterLease* lease) {
                                               const std::lock_guard guard(slots->mutex);
                                               slots->taken[static_cast<size_t>(lease->slot)] = false;
                                               delete lease;
                                             });
}

Status Adapters::write(int32_t slot, const PeftAdapter& adapter) {
  const AdapterOptions& options = layout_.options;
  for (size_t s = 0; s < layout_.sites.size(); ++s) {
    const AdapterSite& site = layout_.sites[s];
    auto* rank = static_cast<int32_t*>(ranks_[s].mutable_data()) + slot;
    *rank = 0;
    const auto module = adapter.modules.find(module_of(site.weight));
    if (module == adapter.modules.end()) continue;
    OAR_ASSIGN(const Tensor a, through(site.basis.inputs, module->second.a, pool_));
    OAR_ASSIGN(const Tensor b, through(site.basis.outputs, module->second.b, pool_));
    const int64_t r = a.shape()[0];
    for (int64_t i = 0; i < r; ++i) {
      put_row(a_[s], options.format, slot * options.rank + i, a.values<float>().data() + i * site.inputs,
              site.inputs);
    }
    // The other way round, with its factor.
    std::vector<float> row(static_cast<size_t>(site.outputs));
    for (int64_t i = 0; i < r; ++i) {
      for (int64_t n = 0; n < site.outputs; ++n) {
        row[static_cast<size_t>(n)] = static_cast<float>(
            module->second.factor * static_cast<double>(b.values<float>()[static_cast<size_t>(n * r + i)]));
      }
      if (!std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); }))
        return invalid_argument(
            cat("adapter of ", module->first, ": B times lora_alpha / r is too large for f32"));
      put_row(b_[s], options.format, slot * options.rank + i, row.data(), site.outputs);
    }
    *rank = static_cast<int32_t>(r);
  }
  return ok_status();
}

Result<AdapterInfo> Adapters::load(const std::string& name, const std::string& folder) {
  if (name.empty()) return invalid_argument("the adapter's name is empty", "lora_name");
  const auto known = [&]() -> Status {
    if (!by_name_.contains(name)) return ok_status();
    return {StatusCode::kAlreadyExists, cat("an adapter '", name, "' is loaded; unload it first"),
            "lora_name"};
  };
  {
    const std::lock_guard lock(mutex_);
    OAR_RETURN_IF_ERROR(known());
  }
  OAR_ASSIGN(const PeftAdapter adapter, load_peft_adapter(folder));
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
  OAR_ASSIGN(auto lease, take_slot());
  if (lease == nullptr) {
    const std::lock_guard lock(mutex_);
    return resource_exhausted(cat("all ", slots(), " slots of adapters are held (loaded: ", names(),
                                  "); unload one, or raise max_loras"));
  }
  OAR_RETURN_IF_ERROR(write(lease->slot, adapter));
  const std::lock_guard lock(mutex_);
  OAR_RETURN_IF_ERROR(known());
  AdapterInfo info{name, folder, adapter.base, adapter.rank, lease->load};
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
