// A command of `oar`: adds its subcommand and options to the parser and, when chosen, leaves what is to be
// done in `action`, which runs after parsing. One file per command; a new one is a line here, in main.cc and
// in CMakeLists.txt.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "engine/base/status.h"

namespace oar::cli {

// Exit codes of the program.
inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;  // the work failed: message on stderr
inline constexpr int kUsage = 2;    // the command line is wrong
inline constexpr int kCutOff = 3;   // a server stopped with requests that had no time to finish

using Action = std::function<int()>;

void add_serve(CLI::App& app, Action& action);
void add_run(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_batch(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_loadtest(CLI::App& app, Action& action);
void add_quantize(CLI::App& app, Action& action);
void add_tune(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_check(CLI::App& app, Action& action);
void add_classify(CLI::App& app, Action& action);
void add_completions(CLI::App& app, Action& action);
void add_conformance(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_finetune(CLI::App& app, Action& action);
void add_health(CLI::App& app, Action& action);
void add_infer(CLI::App& app, Action& action);
void add_merge(CLI::App& app, Action& action);
void add_ocr(CLI::App& app, Action& action);
void add_repository(CLI::App& app, Action& action);
void add_models(CLI::App& app, Action& action);
void add_ops(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);
void add_version(CLI::App& app, Action& action);

struct TextReaderOptions;
// What `oar ocr` and `oar repository ocr` both take.
void add_ocr_options(CLI::App& command, TextReaderOptions& options);

// Prints "oar: <message>" to stderr; the exit code that goes with it.
int fail(const Status& status);

// -o, --out: a folder that is written beside its name until it is whole, so "OUT/" names OUT.
CLI::Option* add_out(CLI::App& command, std::string& out,
                     const char* help = "the folder to write; must not exist");

}  // namespace oar::cli
