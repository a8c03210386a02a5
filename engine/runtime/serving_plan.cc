#include "engine/runtime/serving_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/weight_store.h"
#include "engine/graph/weights.h"
#include "engine/loader/byte_reader.h"
#include "engine/ops/cache_keys.h"
#include "engine/ops/weights.h"
#include "engine/runtime/adapters.h"
#include "engine/runtime/stored_basis.h"

namespace oar {
namespace {

bool is_linear(const Node& n) {
  return n.is("linear") || n.is("gated_linear") || n.is("grouped_linear") || n.is("expanded_attention");
}

size_t first_weight(const Node& n) {
  return n.is("linear") ? 2 : n.is("gated_linear") ? 3 : n.is("grouped_linear") ? 4 : 10;
}
size_t weight_step(const Node& n) { return n.is("grouped_linear") || n.is("expanded_attention") ? 1 : 2; }

// What kernels shall compute in; empty: as stored. Schemes that are not by_kernel have quantized the
// checkpoint before the graph was built (quantize_at_load).
Result<std::string> weight_format(const std::string& name) {
  OAR_ASSIGN(const WeightScheme scheme, weight_scheme(name));
  return scheme.by_kernel ? scheme.body : std::string();
}

// "bf16", or "q4_k+q6_k" where linear layers differ.
std::string stored_formats(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& n : graph.nodes()) {
    if (!is_linear(n)) continue;
    for (size_t k = first_weight(n); k < n.inputs.size(); k += weight_step(n)) {
      const std::string wanted = n.attrs.get_string("format");  // what a rewritten weight is stored as
      names.insert(wanted.empty() ? graph.value(n.inputs[k]).type.format.name() : wanted);
    }
  }
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : "+") + name;
  return all;
}

// The widest plain float among the weights that feed attention decides how wide an automatic cache is.
DType widest_weight(const Checkpoint& checkpoint) {
  DType widest = DType::kBF16;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (tensor.shape().rank() < 2 || !tensor.format().plain()) continue;
    if (tensor.format().dtype() == DType::kF32) return DType::kF32;
    if (tensor.format().dtype() == DType::kF16) widest = DType::kF16;
  }
  return widest;
}

// "auto", one format, or one per layer with slashes between: "int8/int4/int4/int8".
Result<std::vector<KvFormat>> kv_formats(std::string_view names, const Checkpoint& checkpoint) {
  if (names == "auto") names = dtype_name(widest_weight(checkpoint));
  std::vector<KvFormat> out;
  for (;;) {
    const size_t end = names.find('/');
    OAR_ASSIGN(KvFormat format, kv_format(names.substr(0, end)));
    out.push_back(std::move(format));
    if (end == std::string_view::npos) return out;
    names.remove_prefix(end + 1);
  }
}

// Whether a backend has all the kernels of such a cache, and of the rotations that come with one.
bool keeps(const Backend& backend, const KvFormat& kv, const std::string& rotate, bool latent) {
  using F = KernelFamily;
  const auto has = [&](const KernelKey& key) {
    return backend.find_kernel(of_cache(backend, latent, key)) != nullptr;
  };
  if (!kv.quantized)
    return has({F::kKvAppend, Format::of(kv.type)}) && has({F::kPagedAttention, Format::of(kv.type)});
  if (rotate == "auto" && backend.find_kernel({F::kHadamard}) == nullptr) return false;
  return has(quant_kv_key(F::kQuantKvAppend, kv.keys, kv.values)) &&
         has(quant_kv_key(F::kQuantPagedAttention, kv.keys, kv.values));
}

// The workers of a backend or of what is done before there is one.
std::shared_ptr<ThreadPool> make_pool(const LanguageModelOptions& options) {
  return options.resources.pool ? options.resources.pool->share(options.threads)
                                : std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = options.threads});
}

constexpr int64_t kMaxLoras = 1024, kMaxLoraRank = 512;

bool on_device(const LanguageModelOptions& options) {
  return !options.device.empty() && options.device != "cpu";
}

// Whether slots for adapters may be had.
Status check_adapters(const LanguageModelOptions& options) {
  if (options.adapter_slots() > kMaxLoras)
    return invalid_argument(cat("max_loras ", options.adapter_slots(), " is not from 0 to ", kMaxLoras),
                            "max_loras");
  if (options.max_lora_rank < 1 || options.max_lora_rank > kMaxLoraRank)
    return invalid_argument(cat("max_lora_rank ", options.max_lora_rank, " is not from 1 to ", kMaxLoraRank),
                            "max_lora_rank");
  return ok_status();
}

// Adapters have the rows of queries and keys as at Hugging Face; the file may not. Nor may its value heads,
// or its matrices be those that an adapter adds to: then it is refused.
void follow_file(const ModelConfig& config, std::vector<AdapterSite>& sites) {
  for (AdapterSite& site : sites) {
    if (config.folded)
      site.basis.refusal = "the file's matrices have their multipliers in them; take the checkpoint's";
    const bool tiled = config.scan.tiled && config.scan.heads != config.scan.key_heads;
    if (tiled && site.weight.find(".linear_attn.") != site.weight.npos)
      site.basis.refusal = "the file has value heads in another order; take the checkpoint's";
    if (!config.paired_rows) continue;
    const bool paired = site.weight.ends_with(".q_proj.weight") || site.weight.ends_with(".k_proj.weight");
    if (paired) pair_rows(site.basis, site.outputs, config.head_dim);
  }
}

// Whether rows of prompts take the expanded form of attention over a latent.
Result<bool> expands_latents(const ModelConfig& config, const LanguageModelOptions& options) {
  if (options.mla == "absorbed") return false;
  if (options.mla != "expanded")
    return invalid_argument(cat("mla '", options.mla, "' is neither absorbed nor expanded"), "mla");
  if (config.latent.rank == 0)
    return invalid_argument(
        cat("mla 'expanded': a ", config.model_type, " keeps no latent to expand; leave it out"), "mla");
  return true;
}

// Rows of logits of one step. Draft tokens want one each: as many as 64 MiB hold.
int64_t max_logit_rows(const LanguageModelOptions& options, int64_t vocab) {
  if (!options.speculative.enabled()) return options.max_sequences;
  constexpr int64_t kMost = 64 << 20;
  return std::max(options.max_sequences,
                  std::min(options.max_batch_tokens, kMost / (vocab * static_cast<int64_t>(sizeof(float)))));
}

}  // namespace

Result<LanguageModelOptions> with_kv_of(const Backend& backend, const Checkpoint& checkpoint,
                                        const ModelConfig& config, LanguageModelOptions options) {
  if (options.kv != "auto") return options;
  std::vector<std::string> tiers = {dtype_name(widest_weight(checkpoint)), "f32", "f16", "bf16"};
  if (!options.preferred_kv.empty()) tiers.insert(tiers.begin(), options.preferred_kv);
  for (const std::string& tier : tiers) {
    OAR_ASSIGN(const KvFormat format, kv_format(tier));
    if (!keeps(backend, format, options.rotate, config.latent.rank > 0)) continue;
    options.kv = tier;
    break;
  }
  return options;
}

void for_each_matrix(const Graph& graph, const std::function<void(size_t, ValueId, Format)>& take) {
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (!is_linear(node)) continue;
    const auto wanted = Format::find(node.attrs.get_string("format"));
    for (size_t k = first_weight(node); k < node.inputs.size(); k += weight_step(node)) {
      const ValueId id = node.inputs[k];
      if (id == kNoValue || graph.value(id).type.shape.size() != 2) continue;
      const Format stored = graph.value(id).type.format;
      const int64_t cols = graph.value(id).type.shape[1].const_value();
      const bool taken = wanted && wanted->row_bytes(cols) && (wanted->plain() || stored.plain());
      take(i, id, taken ? *wanted : stored);
    }
  }
}

namespace {
// What weights at `options` leave in a plain format for their width.
Result<std::vector<UnevenMatrix>> uneven_matrices(const Graph& graph, const std::string& weights) {
  OAR_ASSIGN(const WeightScheme scheme, weight_scheme(weights));
  std::vector<UnevenMatrix> out;
  std::set<std::string> seen;
  for_each_matrix(graph, [&](size_t, ValueId id, Format format) {
    const TensorType& type = graph.value(id).type;
    const int64_t rows = type.shape[0].const_value(), cols = type.shape[1].const_value();
    if (!format.plain() || !stays_plain(scheme, cols)) return;
    const ValueId source = weight_source(graph, graph.nodes(), id);
    const std::string& name = graph.value(source == kNoValue ? id : source).name;
    if (seen.insert(name).second) out.push_back({name, rows, cols, format.name()});
  });
  return out;
}
}  // namespace

Result<LinearWeights> compute_linears_in(Graph& graph, const std::string& weights, const Logger& log) {
  LinearWeights out;
  OAR_ASSIGN(const std::string format, weight_format(weights));
  // What is quantized already is not quantized again.
  const bool narrow = !format.empty() && !Format::find(format)->plain();
  size_t taken = 0, left = 0;
  for (Node& n : graph.nodes()) {
    if (format.empty() || !is_linear(n)) continue;
    bool takes = false;
    for (size_t k = first_weight(n); k < n.inputs.size(); k += weight_step(n)) {
      if (n.inputs[k] == kNoValue) continue;
      const bool can = !narrow || graph.value(n.inputs[k]).type.format.plain();
      ++(can ? taken : left);
      takes = takes || can;
    }
    if (takes) n.attrs.set("format", format);
  }
  if (taken == 0 && left > 0) log(LogLevel::kWarning, nothing_to_quantize(weights));
  out.name = format.empty() || left > 0 ? stored_formats(graph) : weights;
  OAR_ASSIGN(out.uneven, uneven_matrices(graph, weights));
  if (!out.uneven.empty()) log(LogLevel::kWarning, cat("weights ", weights, ": ", uneven_text(out.uneven)));
  return out;
}

namespace {

// Files have these of what a forward pass computes itself: frequencies of rotations, masks, biases of zeros.
bool is_buffer(const std::string& name, const Tensor& t) {
  if (name.ends_with(".inv_freq") || name.ends_with(".masked_bias")) return true;
  if (!name.ends_with(".bias")) return false;
  const auto* bytes = static_cast<const char*>(t.data());
  return t.shape().rank() > 2 || std::all_of(bytes, bytes + t.bytes(), [](char b) { return b == 0; });
}

// Tensors that no constant of the graph is a part of, layers and experts together: "'layers.*.a' (2), 'b'
// (1)".
std::string unread_tensors(const Graph& graph, const Checkpoint& checkpoint, const ModelConfig& config) {
  std::vector<const std::byte*> read;
  for (size_t v = 0; v < graph.num_values(); ++v) {
    const Value& value = graph.value(static_cast<ValueId>(v));
    if (value.kind == ValueKind::kConstant)
      read.push_back(static_cast<const std::byte*>(value.constant.data()));
  }
  std::ranges::sort(read);
  std::map<std::string, size_t> left;
  for (const auto& [name, t] : checkpoint.tensors) {
    const auto* begin = static_cast<const std::byte*>(t.data());
    const auto at = std::ranges::lower_bound(read, begin);
    if (t.bytes() == 0 || (at != read.end() && *at < begin + t.bytes())) continue;
    const bool other_head = config.tied && name == find_architecture(config.model_type)->head;
    if (name.starts_with(kBasisPrefix) || other_head || is_buffer(name, t)) continue;
    std::string all;
    for (size_t k = 0; k < name.size(); ++k) {
      const bool digit = name[k] >= '0' && name[k] <= '9', inside = k > 0 && name[k - 1] != '.';
      if (!digit || inside) all += name[k];
      else all += '*', k = std::min(name.find_first_not_of("0123456789", k), name.size()) - 1;
    }
    ++left[all];
  }
  constexpr size_t kShown = 8;
  std::string out;
  for (size_t k = 0; const auto& [name, count] : left) {
    if (k++ == kShown) return cat(out, " and ", left.size() - kShown, " more");
    out += cat(out.empty() ? "" : ", ", show_name(name), " (", count, ")");
  }
  return out;
}

}  // namespace

Result<RotationOptions> wanted_rotation(const std::string& rotate, const std::vector<KvFormat>& kv) {
  if (rotate != "auto") return parse_rotation(rotate);
  const bool quantized = std::any_of(kv.begin(), kv.end(), [](const KvFormat& f) { return f.quantized; });
  return parse_rotation(quantized ? "kv" : "none");
}

Result<ServingGraph> build_serving_graph(const Checkpoint& checkpoint, const ModelConfig& config,
                                         const LanguageModelOptions& options,
                                         std::function<void(const Pass&, const Graph&, bool after)> observer,
                                         const std::function<Status(Graph&)>& edit) {
  ServingGraph out;
  if (options.mla == "expanded" && on_device(options)) {
    return Status{StatusCode::kUnimplemented,
                  cat("mla 'expanded': --device ", options.device,
                      " attends to latents in the absorbed form alone; leave out one of the two"),
                  "mla"};
  }
  OAR_RETURN_IF_ERROR(weight_scheme(options.weights).status());
  ServeOptions serving;
  OAR_ASSIGN(serving.kv, kv_formats(options.kv, checkpoint));
  out.kv = options.kv == "auto" ? serving.kv[0].name : options.kv;
  if (options.page_tokens < 16 || options.page_tokens % 16 != 0 || options.page_tokens > 4096) {
    return invalid_argument(cat("page_tokens ", options.page_tokens, " is not a multiple of 16 up to 4096"),
                            "page_tokens");
  }
  if (options.max_batch_tokens < 1 || options.max_sequences < 1 || options.max_context < 0) {
    return invalid_argument("max_batch_tokens and max_sequences must be at least 1, max_context at least 0");
  }
  out.max_context = options.max_context > 0 ? options.max_context : config.served_context();
  if (options.max_context == 0 && out.max_context < config.max_context)
    options.log(LogLevel::kInfo, cat("context of ", out.max_context, " tokens: the model has ",
                                     config.max_context, ", which max_context asks for"));
  if (out.max_context > config.max_context) {
    if (config.model_type == "gpt2") {
      return invalid_argument(
          cat("max_context ", out.max_context, " exceeds the ", config.max_context, " learned positions"),
          "max_context");
    }
    options.log(LogLevel::kWarning, cat("context of ", out.max_context,
                                        " tokens: the model says it was made for ", config.max_context));
  }

  BuildOptions build;
  build.max_batch_tokens = std::max(options.max_batch_tokens, options.max_sequences);
  build.max_logit_rows = max_logit_rows(options, config.vocab);
  build.max_context = out.max_context;
  ModelConfig served = config;
  OAR_ASSIGN(served.latent.expanded, expands_latents(config, options));
  OAR_ASSIGN(out.model, build_model(checkpoint, served, build));
  if (const std::string unread = unread_tensors(out.model.graph, checkpoint, config); !unread.empty())
    options.log(LogLevel::kWarning, cat("tensors that ", config.model_type, " does not read: ", unread));
  PassOptions passes;
  passes.disabled = {options.disabled_passes.begin(), options.disabled_passes.end()};
  passes.observer = std::move(observer);
  // An adapter of the projection behind a gate reads what the fused layer keeps to itself.
  if (options.adapter_slots() > 0) passes.disabled.insert("fuse_gated_linear");
  if (!on_device(options)) passes.disabled.insert("order_columns");
  OAR_ASSIGN(const RotationOptions wanted, wanted_rotation(options.rotate, serving.kv));
  OAR_ASSIGN(const RotationOptions stored, stored_rotation(checkpoint.config));
  RotationOptions rotation = merge_rotation(stored, wanted);
  rotation.key_mean_tokens.clear();
  for (const KvFormat& f : serving.kv) {
    const bool mean = f.quantized && f.keys == KvCode::kInt4Mean;
    rotation.key_mean_tokens.push_back(mean ? options.page_tokens : 0);
  }
  const auto left_out = std::make_shared<std::vector<LeftOut>>();
  out.pass_list = language_model_passes(rotation, left_out);
  OAR_ASSIGN(out.passes, run_passes(out.model.graph, out.pass_list, passes));
  OAR_ASSIGN(const RotationOptions applied, applied_rotation(rotation, out.passes, *left_out));
  out.rotation = rotation_names(applied);
  if (!left_out->empty())
    options.log(options.rotate == "auto" ? LogLevel::kInfo : LogLevel::kWarning,
                cat("rotate ", options.rotate, ": left out ", left_out_text(*left_out)));
  OAR_ASSIGN(LinearWeights linears, compute_linears_in(out.model.graph, options.weights, options.log));
  out.weights = std::move(linears.name);
  out.uneven = std::move(linears.uneven);
  if (edit) OAR_RETURN_IF_ERROR(edit(out.model.graph));
  serving.page_tokens = options.page_tokens;
  serving.max_sequences = options.max_sequences;
  serving.max_context = out.max_context;
  OAR_ASSIGN(out.layout, serve(out.model.graph, serving));
  if (out.layout.groups.empty()) return invalid_argument("the model has no attention or recurrent layer");
  if (options.adapter_slots() > 0) {
    OAR_RETURN_IF_ERROR(check_adapters(options));
    // As wide as the base: what a base in 16 bits or less leaves of them is told by the base.
    const bool wide = widest_weight(checkpoint) != DType::kBF16;
    const auto pool = make_pool(options);
    OAR_ASSIGN(out.adapters, insert_adapters(out.model.graph, "tokens",
                                             {.slots = options.adapter_slots(),
                                              .rank = options.max_lora_rank,
                                              .format = wide ? Format::f32() : Format::bf16()},
                                             *pool));
    if (rewritten(checkpoint, stored)) {
      OAR_ASSIGN(const auto bases, stored_bases(checkpoint, config, stored, *pool));
      for (AdapterSite& site : out.adapters.sites) precede(site.basis, bases.at(site.weight));
    }
    follow_file(config, out.adapters.sites);
  }
  return out;
}

ForeseenWeights foresee_weights(const Graph& graph, const Backend& backend) {
  ForeseenWeights out;
  std::set<std::string> seen;  // keys of the WeightStore that is to come
  const auto stays = [&](const Tensor& t) {
    if (!seen.insert(cat(reinterpret_cast<uintptr_t>(t.data()))).second) return;
    out.in_place += t.bytes();
    if (t.buffer().mapped()) out.mapped += t.bytes();
  };
  for (const Node& n : graph.nodes()) {
    const std::string wanted = n.attrs.get_string("format");
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      if (n.inputs[k] == kNoValue) continue;
      const Value& v = graph.value(n.inputs[k]);
      const bool constant = v.kind == ValueKind::kConstant;
      const bool matrix = is_linear(n) && k >= first_weight(n) && (k - first_weight(n)) % weight_step(n) == 0;
      const bool table = n.is("embedding") && k == 0;
      if ((!matrix && !table) || (table && constant)) {
        if (constant) stays(v.constant);
        continue;
      }
      const Shape shape{v.type.shape[0].const_value(), v.type.shape[1].const_value()};
      const Format from = oar::weight_format(graph, graph.nodes(), n.inputs[k]);
      const Format own =
          table ? Format::find(wanted).value_or(from) : compute_format(from, shape, wanted, backend);
      if (matrix && in_panels(n, own, backend)) {
        if (seen.insert(weight_key(graph, n.inputs[k]) + " panels").second)
          out.made += panel_bytes(shape[0], shape[1], backend);
        continue;
      }
      uint64_t packed = 0;
      if (matrix) {
        const auto bytes = backend.packed_bytes(own, shape[0], shape[1]);
        packed = bytes.ok() ? *bytes : 0;  // who packs it tells the error
      }
      if (packed == 0 && constant && own == from) {
        stays(v.constant);
      } else if (seen.insert(
                         cat(weight_key(graph, n.inputs[k]), packed > 0 ? " matmul " : " rows ", own.name()))
                     .second) {
        out.made += packed > 0 ? packed : static_cast<uint64_t>(*own.row_bytes(shape[1]) * shape[0]);
      }
    }
  }
  return out;
}

Result<std::shared_ptr<Backend>> make_backend(const LanguageModelOptions& options) {
  return make_backend(options.device, make_pool(options), options.reference ? Isa::kReference : best_isa(),
                      options.log);
}

Result<ServingPlan> compile_serving_plan(ServingGraph graph, const ModelConfig& config,
                                         const LanguageModelOptions& options,
                                         std::shared_ptr<Backend> backend, const Progress& progress) {
  ServingPlan serving;
  serving.T = graph.model.T;
  serving.R = graph.model.R;
  serving.layout = std::move(graph.layout);
  serving.max_batch_tokens = std::max(options.max_batch_tokens, options.max_sequences);
  serving.max_sequences = options.max_sequences;
  serving.max_logit_rows = max_logit_rows(options, config.vocab);
  serving.max_context = graph.max_context;
  serving.vocab_size = config.vocab;
  serving.page_tokens = options.page_tokens;
  // Where products or attention of prompts have kernels of their own, the graph says which rows are theirs.
  const auto products = [&](RowClass rows) {
    return backend->find_kernel({.family = KernelFamily::kMatmul, .weight = Format::bf16(), .rows = rows});
  };
  const bool expanded = std::any_of(graph.model.graph.nodes().begin(), graph.model.graph.nodes().end(),
                                    [](const Node& n) { return n.is("expanded_attention"); });
  if (expanded || products(RowClass::kPrompt) != products(RowClass::kAny)) {
    Graph& g = graph.model.graph;
    serving.prompts = g.add_symbol("Q", serving.max_batch_tokens);
    g.phases = {serving.T, *serving.prompts};
  }
  OAR_ASSIGN(auto program, Program::create(std::move(graph.model.graph), *backend, {options.log, progress}));
  OAR_ASSIGN(serving.run, Run::create(std::move(program)));
  if (graph.adapters.options.slots > 0) {
    const KernelKey key{.family = KernelFamily::kLora, .weight = graph.adapters.options.format};
    if (backend->find_kernel(key) == nullptr)
      return unimplemented(
          cat("max_loras: there is no kernel for adapters on ", options.device, "; leave out --device"));
    OAR_ASSIGN(serving.adapters,
               Adapters::make(std::move(graph.adapters), *serving.run, backend->host_pool()));
    for (const auto& [name, folder] : options.loras)
      OAR_RETURN_IF_ERROR(serving.adapters->load(name, folder).status());
  }
  serving.backend = std::move(backend);
  return serving;
}

namespace {
bool of_state(ServeLayout::Pages pages) {
  return pages == ServeLayout::Pages::kState || pages == ServeLayout::Pages::kRows;
}
// Of a group for so many sequences. Of recurrent state each has one to go on from and one that it writes, and
// two lie beside; of the rest one sequence must have room (Scheduler::create has the counts).
uint64_t least_blocks(ServeLayout::Pages pages, uint64_t sequences) {
  if (of_state(pages)) return 2 * sequences + 2;
  return pages == ServeLayout::Pages::kOpen ? 3 : 1;
}
uint64_t least_bytes(const ServeLayout& layout, uint64_t sequences) {
  uint64_t bytes = 0;
  for (const auto& g : layout.groups) bytes += g.block_bytes * least_blocks(g.pages, sequences);
  return bytes;
}
uint64_t state_bytes(const ServeLayout& layout) {  // of a block of each kind
  uint64_t bytes = 0;
  for (const auto& g : layout.groups) bytes += of_state(g.pages) ? g.block_bytes : 0;
  return bytes;
}
// The most of a budget that states of more than one running sequence take, and that snapshots do unless told.
constexpr uint64_t kStateShare = 2, kSnapshotShare = 8;
}  // namespace

int64_t sequences_for(const ServeLayout& layout, uint64_t bytes, int64_t wanted) {
  const uint64_t each = state_bytes(layout);
  if (each == 0) return wanted;
  const uint64_t one = least_blocks(ServeLayout::Pages::kState, 1);
  const uint64_t others = least_bytes(layout, 1) - one * each;
  const uint64_t blocks = std::min(bytes / kStateShare, bytes - std::min(bytes, others)) / each;
  return std::min(wanted, static_cast<int64_t>((std::max(blocks, one) - 2) / 2));
}

uint64_t kv_bytes_per_token(const ServeLayout& layout, int32_t page_tokens) {
  uint64_t block = 0;
  for (const auto& g : layout.groups) block += g.pages == ServeLayout::Pages::kAll ? g.block_bytes : 0;
  return block / static_cast<uint64_t>(page_tokens);
}

uint64_t state_bytes_per_step(const ServeLayout& layout) {
  uint64_t bytes = 0;
  for (const auto& g : layout.groups) {
    if (g.pages == ServeLayout::Pages::kState) bytes += g.block_bytes;
    if (g.pages == ServeLayout::Pages::kRows) bytes += g.block_bytes / 2;
  }
  return bytes;
}

uint64_t least_kv_bytes(const ServeLayout& layout) { return least_bytes(layout, 1); }

uint64_t pool_bytes(const ServeLayout& layout, const std::vector<int32_t>& blocks) {
  uint64_t bytes = 0;
  for (size_t g = 0; g < blocks.size(); ++g) {
    bytes += layout.groups[g].block_bytes * static_cast<uint64_t>(blocks[g]);
  }
  return bytes;
}

std::vector<int32_t> blocks_for(const ServeLayout& layout, uint64_t bytes, const PoolLimits& limits) {
  using Pages = ServeLayout::Pages;
  const auto P = static_cast<uint64_t>(limits.page_tokens);
  const auto sequences = static_cast<uint64_t>(limits.max_sequences);
  const uint64_t most = INT32_MAX / P;
  std::vector<int32_t> out(layout.groups.size());
  uint64_t left = bytes, per_block = 0, snapshot = 0;
  for (const ServeLayout::Group& g : layout.groups)  // one is a state of each: of a draft model's layers too
    snapshot += g.pages == Pages::kState ? g.block_bytes : 0;
  // Charged first: what running sequences need. What is beyond the least, of which others have shares.
  uint64_t spare = bytes - std::min(bytes, least_bytes(layout, sequences)), snapshots = 0;
  if (snapshot > 0)
    snapshots = limits.state_snapshots.value_or(std::min(bytes / kSnapshotShare, spare)) / snapshot;
  spare -= std::min(spare, snapshots * snapshot);
  for (size_t g = 0; g < out.size(); ++g) {
    const ServeLayout::Group& group = layout.groups[g];
    if (group.pages == Pages::kAll) {
      per_block += group.block_bytes;
      continue;
    }
    const uint64_t least = least_blocks(group.pages, sequences);
    uint64_t n = least + (group.pages == Pages::kState ? snapshots : 0);
    if (!of_state(group.pages)) {
      const uint64_t wanted = group.pages == Pages::kOpen
                                  ? static_cast<uint64_t>(limits.max_batch_tokens) / P + 2 * sequences + 2
                                  : 4 * sequences + 16;
      // Open pages may take 3/16 of the budget, first pages 1/16.
      const uint64_t share = bytes / 16 * (group.pages == Pages::kOpen ? 3 : 1) / group.block_bytes;
      n = std::max(least, std::min({wanted, share, least + spare / group.block_bytes}));
      spare -= (n - least) * group.block_bytes;
    }
    out[g] = static_cast<int32_t>(std::min(n, most));
    left -= std::min(left, static_cast<uint64_t>(out[g]) * group.block_bytes);
  }
  // Equal shares per token, but of a group with a window no more than its sequences can use: each its window,
  // unaligned, and what is drawn in flight; as many prefixes that wait to be used again; one prefill chunk.
  // What such groups leave goes to the others.
  const uint64_t useful = (static_cast<uint64_t>(limits.max_tokens) + P - 1) / P + 1;
  uint64_t blocks = 0;
  for (bool settled = false; !settled;) {
    // One even where there is no room: snapshots that were asked for have it, and who charges the pools sees.
    blocks = per_block > 0 ? std::clamp<uint64_t>(left / per_block, 1, std::min(useful, most)) : 0;
    settled = true;
    for (size_t g = 0; g < out.size(); ++g) {
      const ServeLayout::Group& group = layout.groups[g];
      if (group.pages != Pages::kAll || group.window == 0 || out[g] > 0) continue;
      const auto window = static_cast<uint64_t>(group.window);
      const uint64_t enough =
          2 * sequences * ((window + P - 1) / P + 4) + static_cast<uint64_t>(limits.max_batch_tokens) / P + 1;
      if (enough >= blocks) continue;
      out[g] = static_cast<int32_t>(enough);
      left -= enough * group.block_bytes;
      per_block -= group.block_bytes;
      settled = false;
      break;
    }
  }
  for (size_t g = 0; g < out.size(); ++g) {
    if (layout.groups[g].pages == Pages::kAll && out[g] == 0) out[g] = static_cast<int32_t>(blocks);
  }
  return out;
}

}  // namespace oar
