// The table of all compiled kernels and the search in it. Built once from the generated list of append
// functions.
#include <algorithm>
#include <deque>
#include <string>

#include "kernels/kernel_list.h"

namespace oar {

namespace {

// `text` with static storage.
const char* kernel_name(std::string text) {
  static std::deque<std::string> names;  // filled while the table is built, once
  return names.emplace_back(std::move(text)).c_str();
}

}  // namespace

void append_matmul_kernels(KernelList& list, const Kernel (&kernels)[3], const char* level) {
  const char* const families[] = {"matmul", "gated_matmul", "grouped_matmul"};
  for (int i = 0; i < 3; ++i) {
    Kernel k = kernels[i];
    k.name = kernel_name(std::string(families[i]) + "." + (k.format ? k.format->name() : "any") + "." +
                         (level != nullptr ? level : isa_name(k.isa)));
    list.push_back(k);
  }
}

namespace {

class CpuTable {
 public:
  CpuTable() {
#define OAR_REGISTER(name) append_##name(kernels_);
#include "oar_kernels.inc"
#undef OAR_REGISTER
    for (const Kernel& k : kernels_) sorted_.push_back(&k);
    std::stable_sort(sorted_.begin(), sorted_.end(), [](const Kernel* a, const Kernel* b) {
      if (a->family != b->family) return a->family < b->family;
      if (a->format.has_value() != b->format.has_value()) return a->format.has_value();
      return a->isa > b->isa;
    });
  }
  std::span<const Kernel* const> sorted() const { return sorted_; }

 private:
  KernelList kernels_;
  std::vector<const Kernel*> sorted_;
};

const CpuTable& cpu_table() {
  static const CpuTable table;
  return table;
}

}  // namespace

const Kernel* KernelRegistry::find(KernelFamily family, Format format, Isa isa) const {
  for (const Kernel* k : all()) {
    if (k->family == family && k->isa <= isa && (!k->format || *k->format == format)) return k;
  }
  return nullptr;
}

std::span<const Kernel* const> KernelRegistry::all() const { return cpu_table().sorted(); }

const KernelRegistry& KernelRegistry::cpu() {
  static const KernelRegistry registry;
  return registry;
}

}  // namespace oar
