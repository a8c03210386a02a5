// What the benches' command lines have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "kernels/kernel.h"

namespace oar_bench {

// --threads, --rounds, --isa (up to what this machine has) and --json.
struct Options {
  int threads = 0, rounds = 0;
  oar::Isa isa = oar::best_isa();
  bool json = false;

  void add_to(CLI::App& app) {
    std::map<std::string, oar::Isa> levels;
    for (int l = 0; l <= static_cast<int>(oar::best_isa()); ++l)
      levels[oar::isa_name(static_cast<oar::Isa>(l))] = static_cast<oar::Isa>(l);
    app.add_option("--threads", threads, "0: all usable CPUs")
        ->check(CLI::Range(0, 4096))
        ->capture_default_str();
    app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    app.add_option("--isa", isa)->transform(CLI::CheckedTransformer(levels));
    app.add_flag("--json", json, "every round's times and probes, for bench_cpu.py");
  }
};

}  // namespace oar_bench
