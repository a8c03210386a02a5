#include "server/api/llama_request.h"

#include "engine/base/format.h"
#include "server/api/openai_request.h"

namespace oar::api {
namespace {

constexpr size_t kMaxModelName = 256;

// The text around the gap. Other files' texts would stand before it in a way that each model has of its own.
void read_gap(Fields& f, GenerationRequest& r) {
  std::string prefix;
  for (const char* name : {"input_prefix", "input_suffix"}) f.require(name, "send the text around the gap");
  f.string("input_prefix", prefix, SIZE_MAX);
  f.string("input_suffix", r.suffix, SIZE_MAX);
  f.string("prompt", r.beginning, SIZE_MAX);
  const json::array* extra = f.array("input_extra");
  if (extra && !extra->empty())
    f.fail("input_extra", cat("input_extra has ", extra->size(),
                              " texts; other files are not read: put them into input_prefix"));
  r.fills = true;
  r.prompt_field = "input_prefix";
  r.prompts.emplace_back(std::move(prefix));
}

}  // namespace

Result<LlamaRequest> parse_llama_request(const RequestBody& body, const ModelHandle& model,
                                         const ApiLimits& limits, bool infill) {
  LlamaRequest out;
  GenerationRequest& r = out.request;
  r = request_for(model);
  const RequestLimits& engine = model.engine->request_limits();
  Fields f(body);
  f.string("model", r.model, kMaxModelName);
  f.boolean("stream", r.streaming.stream);
  read_params(f, engine, limits, r);
  if (r.n != 1) f.fail("n", cat("n is ", r.n, "; a prompt has one answer here: send it several times"));
  // Its ways to say that any seed will do.
  if (r.sampling.seed == UINT64_MAX || r.sampling.seed == UINT32_MAX) r.sampling.seed.reset();
  int32_t probabilities = 0;
  f.integer("n_probs", probabilities, 0, engine.max_logprobs);
  if (probabilities > 0) r.logprobs = probabilities;
  f.boolean("return_tokens", out.return_tokens);
  if (infill) {
    read_gap(f, r);
    f.refuse_rest();
    if (!f.ok()) return f.status();
    return out;
  }
  const json::value* prompt = f.find("prompt");
  f.require("prompt", "send a text, token ids, or a list of either");
  f.refuse_rest();
  if (!f.ok()) return f.status();
  OAR_ASSIGN(r.prompts, read_prompts(prompt, engine.vocab_size, limits.max_prompts));
  return out;
}

}  // namespace oar::api
