#include "clients/cli/prompt.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "clients/cli/ranges.h"
#include "engine/base/format.h"
#include "engine/tensor/mapped_file.h"

namespace oar::cli {
namespace {

constexpr uint64_t kMaxText = uint64_t{64} << 20;

}  // namespace

void add_sampling_options(CLI::App& command, SamplingOptions& o, int64_t max_tokens,
                          const char* temperature) {
  o.max_tokens = max_tokens;
  command.add_option("-n,--max-tokens", o.max_tokens, "tokens to generate at most")
      ->check(zero_or_more())
      ->capture_default_str();
  command
      .add_option("--temperature", o.temperature,
                  std::string("0: always the likeliest token. Default: ") + temperature)
      ->check(in_range(0.f, 100.f));
  command.add_option("--top-p", o.top_p, "sample from the smallest set whose probability reaches this")
      ->check(in_range(0.f, 1.f));
  command.add_option("--top-k", o.top_k, "sample from the k likeliest; 0: all")->check(zero_or_more());
  command.add_option("--min-p", o.min_p, "drop tokens below this part of the likeliest one's probability")
      ->check(in_range(0.f, 1.f));
  command
      .add_option("--repetition-penalty", o.repetition_penalty, "above 1: tokens seen before are less likely")
      ->check(in_range(0.001, 100.0));
  command.add_option("--seed", o.seed, "the same seed gives the same text");
  command.add_option("--stop", o.stop, "end before this text; may be repeated")->allow_extra_args(false);
  auto* constraints = command.add_option_group("Constraint", "what the text has to be; at most one");
  constraints->require_option(0, 1);
  constraints->add_option("--json-schema", o.json_schema_file,
                          "JSON that is valid for the schema in this file");
  constraints->add_flag("--json-object", o.json_object, "any JSON object");
  constraints->add_option("--regex", o.regex, "a text that this pattern matches as a whole");
  constraints->add_option("--grammar", o.grammar_file, "a text of the grammar (GBNF) in this file");
  constraints->add_option("--choice", o.choices, "one of these texts; may be repeated")
      ->allow_extra_args(false);
  constraints->add_option("--structural-tag", o.structural_tag_file,
                          "free text with constrained tags, as the JSON in this file says");
}

SamplingParams sampling_params(const SamplingOptions& o, const GenerationDefaults& d,
                               float fallback_temperature) {
  SamplingParams s;
  s.temperature = o.temperature.value_or(d.temperature.value_or(fallback_temperature));
  s.top_k = o.top_k.value_or(d.top_k.value_or(0));
  s.top_p = o.top_p.value_or(d.top_p.value_or(1.f));
  s.min_p = o.min_p.value_or(d.min_p.value_or(0.f));
  s.repetition_penalty = o.repetition_penalty.value_or(d.repetition_penalty.value_or(1.f));
  s.seed = o.seed;
  return s;
}

Result<grammar::ConstraintSpec> constraint_of(const SamplingOptions& o) {
  using Kind = grammar::ConstraintSpec::Kind;
  grammar::ConstraintSpec spec;
  const auto file = [&](Kind kind, const char* name, const std::string& path) -> Status {
    if (path.empty()) return ok_status();
    spec.kind = kind;
    spec.field = name;
    OAR_ASSIGN(spec.text, read_text(path));
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(file(Kind::kJsonSchema, "--json-schema", o.json_schema_file));
  OAR_RETURN_IF_ERROR(file(Kind::kGrammar, "--grammar", o.grammar_file));
  OAR_RETURN_IF_ERROR(file(Kind::kStructuralTag, "--structural-tag", o.structural_tag_file));
  if (o.json_object) spec = {Kind::kJsonObject, {}, {}, "--json-object"};
  if (!o.regex.empty()) spec = {Kind::kRegex, o.regex, {}, "--regex"};
  if (!o.choices.empty()) spec = {Kind::kChoice, {}, o.choices, "--choice"};
  return spec;
}

Result<std::vector<int32_t>> prompt_ids(const Tokenizer& tokenizer, const std::string& text) {
  if (!text.empty()) {
    OAR_ASSIGN(std::vector<int32_t> ids, tokenizer.encode(text));
    if (!ids.empty()) return ids;
  }
  if (const auto bos = tokenizer.bos_id()) return std::vector<int32_t>{*bos};
  return Status(StatusCode::kFailedPrecondition,
                "the prompt has no tokens and the model no beginning-of-sequence token; give some text",
                "prompt");
}

Result<std::string> read_text(const std::string& path) {
  if (path != "-") return read_small_file(path, kMaxText);
  std::string out;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return unavailable(cat("cannot read standard input: ", std::strerror(errno)));
    if (n == 0) return out;
    out.append(buffer, static_cast<size_t>(n));
    if (out.size() > kMaxText)
      return resource_exhausted("standard input has more than 64 MiB; give less text");
  }
}

}  // namespace oar::cli
