// The `oar` program: parses, runs one command, maps its end to an exit code (command.h).
#include <csignal>
#include <cstdio>

#include "clients/cli/command.h"
#include "clients/cli/embedded_demo.h"
#include "clients/cli/faults.h"
#include "clients/cli/help.h"
#include "engine/base/format.h"

namespace oar::cli {

CLI::Option* add_out(CLI::App& command, std::string& out, const char* help) {
  const auto named = [](std::string& path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const std::string last = path.substr(path.rfind('/') + 1);
    return last.empty() || last == "." || last == ".."
               ? cat("'", path, "' names no new folder; give it a name")
               : std::string();
  };
  return command.add_option("-o,--out", out, help)->required()->transform(CLI::Validator(named, ""));
}

int fail(const Status& status) {
  std::fprintf(stderr, "oar: %s\n", status.message().c_str());
  return status.param() == "command line" ? kUsage : kFailure;
}

namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  oar run demo                                        chat with the embedded model\n"
    "  oar serve demo                                      HTTP on 127.0.0.1:8000, gRPC on 127.0.0.1:8001\n"
    "  oar generate ./Llama-3.2-1B --prompt 'Once upon'    one answer on stdout\n"
    "  oar bench --shape configs/bench/llama-1b.json       speed of a shape, with random weights\n"
    "\n"
    "MODEL is a folder in the Hugging Face layout, a .gguf, .safetensors or llama2.c .bin file, the name of "
    "a\n"
    "downloaded model (org/name), or `demo`. `oar COMMAND --help` explains each command.\n"
    "Exit codes: 0 done, 1 failed, 2 wrong command line.";

int run(int argc, char** argv) {
  CLI::App app("Oar: an inference engine and model server.", "oar");
  app.footer(kFooter);
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.set_version_flag("--version", OAR_VERSION);
  Action action;
  add_serve(app, action);
  add_run(app, action);
  add_generate(app, action);
  add_batch(app, action);
  add_bench(app, action);
  add_eval(app, action);
  add_health(app, action);
  add_loadtest(app, action);
  add_train(app, action);
  add_finetune(app, action);
  add_merge(app, action);
  add_quantize(app, action);
  add_tune(app, action);
  add_inspect(app, action);
  add_check(app, action);
  add_infer(app, action);
  add_conformance(app, action);
  add_convert(app, action);
  add_ocr(app, action);
  add_repository(app, action);
  add_models(app, action);
  add_ops(app, action);
  add_classify(app, action);
  add_tokenize(app, action);
  add_completions(app, action);
  add_version(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {  // --help, --version
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    const CLI::App* command = &app;
    std::string words = "oar";
    for (auto chosen = app.get_subcommands(); !chosen.empty(); chosen = command->get_subcommands()) {
      command = chosen.front();
      words += " " + command->get_name();
    }
    std::fprintf(stderr, "oar: %s\nTry `%s --help`.\n", message_of(*command, error).c_str(), words.c_str());
    return kUsage;
  }
  return action();
}

}  // namespace
}  // namespace oar::cli

int main(int argc, char** argv) {
  // A reader that goes away is an error of write(), not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  oar::cli::install_fault_handler();
  oar::set_embedded_files(oar::cli::embedded_demo());
  return oar::cli::run(argc, argv);
}
