// oar check: does this build work on this machine? Processor, memory, kernels against the reference, the
// embedded (or a given) model's weights, its tokenizer and a few of its tokens, and whether the default ports
// are free. With a device also its kernels.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "clients/cli/check_device.h"
#include "clients/cli/check_kernels.h"
#include "clients/cli/command.h"
#include "clients/cli/logging.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/loader/checkpoint.h"
#include "engine/loader/weight_scan.h"
#include "engine/runtime/language_model.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/text_stream.h"

namespace oar::cli {
namespace {

#ifdef OAR_WITH_SERVER
constexpr bool kHasServer = true;
#else
constexpr bool kHasServer = false;
#endif

// Lines as they come, or at the end one JSON object of all.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  void line(bool ok, const std::string& what, json::object more = {}) {
    if (!json_) std::printf("[%s] %s\n", ok ? " ok " : "FAIL", what.c_str());
    std::fflush(stdout);
    failures_ += ok ? 0 : 1;
    more["ok"] = ok;
    more["what"] = what;
    checks_.push_back(std::move(more));
  }
  void note(const std::string& what) {
    if (!json_) std::printf("[info] %s\n", what.c_str());
    notes_.emplace_back(what);
  }
  int failures() const { return failures_; }
  void end() {
    if (json_) {
      const json::object all = {{"checks", checks_}, {"notes", notes_}, {"failures", failures_}};
      std::printf("%s\n", json::serialize(all).c_str());
    } else if (failures_ == 0) {
      std::printf("Oar works here.\n");
    }
  }

 private:
  bool json_;
  json::array checks_, notes_;
  int failures_ = 0;
};

uint64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(size) : 0;
}

std::string short_number(double x) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2g", x);
  return buffer;
}

void check_machine(Report& report) {
  report.note(cat("oar ", OAR_VERSION, ", ", usable_processors(), " usable CPUs, ",
                  format_bytes(physical_memory()), " memory"));
  report.note(cat("instruction set: ", isa_name(best_isa()), " (lower it with OAR_ISA)"));
}

void check_port(Report& report, uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return report.line(false, cat("cannot make a socket: ", std::strerror(errno)));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const int error = errno;
  close(fd);
  if (free) return report.line(true, cat("port ", port, " is free"));
  // Somebody else's use of a default port is no fault of the build.
  report.note(cat("port ", port, ": ", std::strerror(error), "; serve with another one (--http, --grpc)"));
}

void check_model(Report& report, ThreadPool& pool, const std::string& name, const std::string& device) {
  LanguageModelOptions options;
  options.device = device;
  options.max_sequences = 1;
  options.max_context = 256;
  options.log = make_logger(LogLevel::kError);
  auto path = resolve_model_path(name);
  if (!path.ok()) return report.line(false, path.status().message());
  if (const auto checkpoint = load_checkpoint(*path); checkpoint.ok()) {  // else loading below says why
    const Status weights = check_weights(checkpoint->tensors, pool);
    if (!weights.ok()) return report.line(false, cat(*path, ": ", weights.message()));
    report.line(true, cat("weights: every number of ", checkpoint->tensors.size(), " tensors is finite"));
  }
  auto model = LanguageModel::load(*path, options);
  if (!model.ok()) return report.line(false, cat("load ", *path, ": ", model.status().message()));
  const ModelInfo& info = (*model)->info();
  report.line(true, cat("loaded ", info.name, ": ", info.architecture, ", weights ", info.weights, ", KV ",
                        info.kv, ", on ", info.isa));

  const Tokenizer& tokenizer = *(*model)->tokenizer();
  const std::string text =
      "Good morrow, cousin: na\xc3\xafve \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80, 1597.";
  const auto ids = tokenizer.encode(text, {.add_special_tokens = false});
  report.line(ids.ok() && tokenizer.decode(*ids) == text, "tokenizer round trip");

  Request request;
  request.prompt = {tokenizer.bos_id().value_or(0)};
  request.sampling.temperature = 0;
  request.stop = {.max_tokens = 8, .ignore_eos = true};
  auto stream = TextStream::create((*model)->tokenizer(), {}, 1);
  Status status = stream->start((*model)->engine(), std::move(request));
  int64_t tokens = 0;
  const auto until = Clock::now() + std::chrono::seconds(60);
  while (status.ok() && !stream->done() && Clock::now() < until) {
    if (const auto event = stream->next(std::chrono::milliseconds(100))) {
      tokens += static_cast<int64_t>(event->tokens.size());
      if (event->finish == FinishReason::kError) status = event->status;
    }
  }
  report.line(status.ok() && tokens == 8,
              status.ok() ? cat("generated ", tokens, " of 8 tokens") : cat("generate: ", status.message()));
}

// What a launch needs at least and, of a device whose time means something, took. The shapes are small, so
// most of that is the launch itself: tests/cuda/gpu.py has whole models.
void add_speed(json::object& to, const DeviceLaunch& l, bool timed) {
  if (l.bytes > 0) to["bytes"] = l.bytes, to["operations"] = l.operations;
  if (l.computed > 0) to["computed_microseconds"] = l.computed * 1e6;
  if (!timed) return;
  to["microseconds"] = l.seconds * 1e6;
  if (l.bytes <= 0) return;
  to["gb_per_second"] = l.bytes / l.seconds / 1e9;
  to["tflops"] = l.operations / l.seconds / 1e12;
}
std::string speed_of(const DeviceLaunch& l) {
  std::string out = cat(short_number(l.seconds * 1e6), " us");
  if (l.bytes > 0)
    out += cat(", ", short_number(l.bytes / l.seconds / 1e9), " GB/s, ",
               short_number(l.operations / l.seconds / 1e12), " TFLOP/s");
  if (l.computed > 0) out += cat(", roofline ", short_number(l.computed * 1e6), " us (computed)");
  return out;
}

// Those whose name contains `only`, of which there is one.
void check_device_kernels(Report& report, const std::string& device, const std::string& only) {
  const auto pool = std::make_shared<ThreadPool>();
  auto there = make_backend(device, pool, best_isa(), make_logger(LogLevel::kError));
  if (!there.ok()) return report.line(false, there.status().message());
  const auto reference = make_cpu_backend(pool, Isa::kReference);
  const std::string name = (*there)->name();
  // An emulated device's time is the processor's.
  const bool timed = name.find("emulated") == std::string::npos;
  const std::vector<DeviceCheck> checks = check_device(**there, *reference, only);
  if (checks.empty())
    report.line(false, cat("--kernels \"", only, "\": no kernel of ", name,
                           " is called so; without it all are checked"));
  for (const DeviceCheck& c : checks) {
    if (c.missing) {
      report.note(cat(c.name, ": no kernel on ", name, "; the processor does it"));
      continue;
    }
    json::object more = {{"kernel", c.name}, {"device", name}, {"error", c.error}, {"bound", c.bound}};
    std::string speed;
    if (c.fault.empty()) {
      add_speed(more, c.launches.back(), timed);
      if (timed) speed = cat(", ", speed_of(c.launches.back()));
      json::array before;
      for (size_t i = 0; i + 1 < c.launches.size(); ++i) {
        json::object& one = before.emplace_back(json::object{{"family", c.launches[i].kernel}}).as_object();
        add_speed(one, c.launches[i], timed);
        if (timed) speed += cat("; ", c.launches[i].kernel, " ", speed_of(c.launches[i]));
      }
      if (!before.empty()) more["before"] = std::move(before);
    }
    report.line(c.ok(),
                c.fault.empty() ? cat(c.name, " on ", name, ": error ", short_number(c.error), ", allowed ",
                                      short_number(c.bound), speed)
                                : cat(c.name, " on ", name, ": ", c.fault),
                std::move(more));
  }
}

int ended(Report& report) {
  report.end();
  if (report.failures() == 0) return kSuccess;
  std::fprintf(stderr, "oar: %d checks failed\n", report.failures());
  return kFailure;
}

int check(const std::string& model, const std::string& device, const std::string& only, bool as_json) {
  Report report(as_json);
  check_machine(report);
  if (!only.empty()) {
    check_device_kernels(report, device, only);
    return ended(report);
  }
  ThreadPool pool;
  for (const KernelCheck& c : check_kernels(pool)) {
    report.line(c.ok(), cat(c.name, ": error ", short_number(c.error), ", allowed ", short_number(c.bound)));
  }
  if (device != "cpu") check_device_kernels(report, device, only);
  check_model(report, pool, model, device);
  if (kHasServer) {
    check_port(report, 8000);
    check_port(report, 8001);
  } else {
    report.note("no server in this build (OAR_SERVER=OFF)");
  }
  return ended(report);
}

}  // namespace

void add_check(CLI::App& app, Action& action) {
  auto model = std::make_shared<std::string>("demo"), device = std::make_shared<std::string>("cpu");
  auto only = std::make_shared<std::string>();
  auto as_json = std::make_shared<bool>(false);
  CLI::App* c = app.add_subcommand("check", "Check that this build works on this machine");
  c->add_option("MODEL", *model, "the model to try")->capture_default_str();
  c->add_option("--device", *device, "where the model runs, as for `oar generate`")
      ->type_name("cpu|PLUGIN")
      ->capture_default_str();
  c->add_option("--kernels", *only, "with --device: only its kernels whose name contains this, and no model")
      ->type_name("TEXT");
  c->add_flag("--json", *as_json, "one JSON object instead of lines");
  c->footer(
      "Examples:\n"
      "  oar check\n"
      "  OAR_ISA=avx2 oar check\n"
      "  oar check --device cuda_emulated --kernels norm\n"
      "Compares a matrix product and attention of every instruction-set level with the scalar reference, "
      "then loads\n"
      "the model and generates a few tokens. With --device also each kernel of the device that an op looks "
      "for.");
  c->callback([=, &action] {
    if (!only->empty() && *device == "cpu")
      throw CLI::ValidationError("--kernels", "names kernels of a device: add --device");
    action = [=] { return check(*model, *device, *only, *as_json); };
  });
}

}  // namespace oar::cli
