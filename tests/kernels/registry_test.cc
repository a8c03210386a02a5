// The kernel registry: every family member can be found, capped levels find lower kernels, and the order of
// preference is the documented one.
#include "kernels/kernel.h"
#include "kernels/matmul.h"
#include "kernels/thread_pool.h"
#include "tests/support/catch.h"

using namespace oar;

TEST_CASE("registry: a matmul exists for every format and level") {
  for (const FormatInfo* info : all_formats()) {
    for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
      const Isa isa = static_cast<Isa>(level);
      for (KernelFamily family : {KernelFamily::kMatmul, KernelFamily::kGroupedMatmul}) {
        const Kernel* k = KernelRegistry::cpu().find({family, Format(info)}, isa);
        INFO(info->name << " at " << isa_name(isa));
        REQUIRE(k != nullptr);
        CHECK(k->isa <= isa);
        CHECK((!k->format || *k->format == Format(info)));
      }
    }
  }
}

TEST_CASE("registry: kernels are sorted, named and complete") {
  const auto all = KernelRegistry::cpu().all();
  REQUIRE(!all.empty());
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i]->name != nullptr);
    CHECK(all[i]->plan != nullptr);
    CHECK(all[i]->run != nullptr);
    if (i == 0 || all[i]->family != all[i - 1]->family) continue;
    // Within a family: kernels for one format first, then descending level.
    CHECK(all[i - 1]->format.has_value() >= all[i]->format.has_value());
    if (all[i - 1]->format.has_value() == all[i]->format.has_value()) CHECK(all[i - 1]->isa >= all[i]->isa);
  }
}

TEST_CASE("registry: reference is asked for by its level") {
  const Kernel* k = KernelRegistry::cpu().find({KernelFamily::kMatmul, Format::bf16()}, Isa::kReference);
  REQUIRE(k != nullptr);
  CHECK(k->isa == Isa::kReference);
}

TEST_CASE("cpu: the machine has processors and a level with a name") {
  CHECK(usable_processors() >= 1);
  CHECK(best_isa() >= Isa::kReference);
  CHECK(std::string_view(isa_name(best_isa())) != "unknown");
}
