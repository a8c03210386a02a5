// A training checkpoint that is not as it was written. The first byte says how: 'e' other bytes at places of
// it (four of the place, one of the value), 't' its first bytes (four of their number), 'm' members of what
// it says of itself (JSON), 'w' any file. An error that names the file, or a run that goes on.
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "engine/loader/safetensors.h"
#include "engine/loader/safetensors_writer.h"
#include "tests/fuzz/target.h"
#include "tests/support/test_data.h"
#include "train/result.h"
#include "train/trainer.h"

using namespace oar;
using namespace oar::train;

namespace {

// An adapter of the default model behind its first step.
struct Begun {
  std::string path = oar_test::temp_dir() + "/checkpoint.safetensors", good;
  std::unique_ptr<Trainer> trainer;

  Begun() {
    TrainerOptions o;
    o.model = oar_test::source_path("configs/demo");
    o.data = {oar_test::temp_dir() + "/data.txt"};
    std::ofstream(o.data[0]) << "to be or not";
    o.graph.tokens = 8;
    o.samples.length = 8;
    o.graph.lora.rank = 1;
    o.graph.lora.targets = {"q_proj"};
    o.schedule.steps = 4;
    o.sample_tokens = 0;
    o.threads = 1;
    trainer = Trainer::create(o, {}).value();
    oar_test::must(trainer->step().ok() && trainer->save(path, {{"note", "x"}}).ok());
    good = oar_test::read_file(path);
  }
};

uint32_t number(const uint8_t* p) {
  uint32_t v = 0;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// With other members in what the file says of itself; as it was where `text` is no object.
std::string with_members(const Begun& run, std::string_view text) {
  const auto members = parse_json(text, "fuzz");
  if (!members.ok() || !members->is_object()) return run.good;
  std::ofstream(run.path, std::ios::binary) << run.good;
  json::value about = read_about(run.path).value();
  for (const auto& [key, value] : members->get_object()) about.as_object()[key] = value;
  const Safetensors file = open_safetensors(run.path).value();
  std::vector<NamedState> states;
  for (const auto& [name, t] : file.tensors) states.push_back({name, t});
  const std::string other = run.path + ".members";
  oar_test::must(write_states(other, states, json::serialize(about)).ok());
  return oar_test::read_file(other);
}

}  // namespace

OAR_FUZZ_TARGET(checkpoint) {
  static Begun run;
  if (size == 0 || size > 1 << 16) return 0;
  std::string bytes = run.good;
  const uint8_t* const rest = data + 1;
  switch (data[0]) {
    case 'e':
      for (size_t at = 0; at + 5 < size; at += 5)
        bytes[number(rest + at) % bytes.size()] = static_cast<char>(rest[at + 4]);
      break;
    case 't': bytes.resize(size < 5 ? 0 : number(rest) % bytes.size()); break;
    case 'm': bytes = with_members(run, {reinterpret_cast<const char*>(rest), size - 1}); break;
    default: bytes.assign(reinterpret_cast<const char*>(rest), size - 1);
  }
  std::ofstream(run.path, std::ios::binary) << bytes;
  const auto extra = run.trainer->restore(run.path);
  if (!extra.ok()) {
    oar_test::must(extra.status().message().find(run.path) != std::string::npos);
    return 0;
  }
  const int64_t done = run.trainer->done(), steps = run.trainer->steps();
  oar_test::must(done >= 0 && done <= steps);
  if (done == steps) return 0;
  // Numbers in it may be any; a step is one more, or says what is wrong.
  const auto step = run.trainer->step();
  oar_test::must(step.ok() ? run.trainer->done() == done + 1 : !step.status().message().empty());
  return 0;
}
