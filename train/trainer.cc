#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/format.h"
#include "engine/base/reservation.h"
#include "engine/loader/peft.h"
#include "engine/models/config_reader.h"
#include "engine/ops/train/ops.h"
#include "engine/runtime/content_hash.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/model_plan.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/stored_basis.h"
#include "engine/text/detokenizer.h"
#include "engine/text/utf8.h"
#include "train/classifier.h"
#include "train/labels.h"
#include "train/result.h"

namespace oar::train {

namespace {

int64_t longest(const std::vector<FileSamples>& files, const DataOptions& options) {
  int64_t n = 1;
  for (const FileSamples& f : files)
    for (const Sample& s : f.samples)
      n = std::max(n, s.document ? options.length : static_cast<int64_t>(s.tokens.size()));
  return n;
}

json::array hashes_of(const std::vector<FileSamples>& files) {
  json::array out;
  for (const FileSamples& f : files) {
    ContentHash hash;
    hash.add(cat(f.file.weight, " ", f.samples.size()));
    for (const Sample& s : f.samples) {
      hash.add(std::string_view(reinterpret_cast<const char*>(s.tokens.data()),
                                s.tokens.size() * sizeof(int32_t)));
      hash.add(std::string_view(reinterpret_cast<const char*>(s.learned.data()), s.learned.size()));
      for (const auto* v : {&s.labels, &s.types})
        hash.add(std::string_view(reinterpret_cast<const char*>(v->data()), v->size() * sizeof(int32_t)));
    }
    out.emplace_back(cat(f.file.path, " ", hash.hex()));
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::create(const TrainerOptions& options, const Logger& log) {
  const TrimMemoryAfter trim;
  auto out = std::unique_ptr<Trainer>(new Trainer());
  out->options_ = options;
  if (out->options_.rate == 0) out->options_.rate = options.graph.full ? 1e-5 : 1e-4;
  OAR_RETURN_IF_ERROR(out->load(log));
  OAR_RETURN_IF_ERROR(out->plan());
  return out;
}

Status Trainer::load(const Logger& log) {
  OAR_ASSIGN(const ResolvedModel resolved, resolve_model(options_.model));
  base_name_ = resolved.name == "demo" ? resolved.name : resolved.path;
  ThreadPoolOptions pool;
  pool.threads = options_.threads_each();
  OAR_ASSIGN(backend_, make_backend("", std::make_shared<ThreadPool>(pool), best_isa(), log));
  options_.graph.copies = std::make_shared<WeightCopies>();
  OAR_RETURN_IF_ERROR(is_text_encoder(resolved.path) ? load_labels(resolved.path, log)
                                                     : load_text(resolved.path, log));
  for (const FileSamples& f : held_out_)
    if (f.file.weight != 1)
      return invalid_argument(cat("--eval ", f.file.path, ":", f.file.weight,
                                  ": each held-out sample counts once; a weight is for --data"));
  if (options_.hold_out > 0 && options_.samples.draw_cuts)
    return invalid_argument("--hold-out takes samples, and --cuts drawn leaves documents whole; use --eval");
  if (options_.hold_out > 0 && !data_.empty()) OAR_RETURN_IF_ERROR(hold_out());
  for (const auto* files : {&data_, &held_out_}) {
    for (const FileSamples& f : *files)
      for (const Sample& s : f.samples)
        for (const int32_t id : s.tokens)
          if (id < 0 || id >= config_.vocab)
            return invalid_argument(cat(f.file.path, ": the tokenizer gives id ", id, ", the model has ",
                                        config_.vocab, " tokens"));
  }
  data_hash_ = hashes_of(data_), held_out_hash_ = hashes_of(held_out_);
  model_hash_ = model_identity(checkpoint_);
  evaluates_ = !held_out_.empty() || (data_.empty() && options_.hold_out > 0);
  const int64_t length = options_.samples.length;
  const int64_t least = std::max(longest(data_, options_.samples), longest(held_out_, options_.samples));
  if (options_.graph.tokens == 0) options_.graph.tokens = std::max(least, length);
  if (options_.graph.tokens < least)
    return invalid_argument(cat("--tokens ", options_.graph.tokens, " is less than the longest sample's ",
                                least, "; raise it, or lower --length"));
  packer_ = std::make_unique<Packer>(data_, options_.graph.tokens, length, options_.seed, true);
  held_out_packer_ = std::make_unique<Packer>(held_out_, options_.graph.tokens, length, 0, false);
  if (options_.schedule.steps == 0 && !data_.empty()) {
    // Whole steps, the last epoch's rest included.
    const double batches = options_.epochs * static_cast<double>(packer_->batches(0));
    options_.schedule.steps = std::max<int64_t>(
        1, static_cast<int64_t>(
               std::ceil(batches / static_cast<double>(options_.accumulate * options_.ranks()))));
  }
  return options_.schedule.check();
}

// Samples of the data become held-out data.
Status Trainer::hold_out() {
  size_t count = 0, at = 0, next = 0;
  for (const FileSamples& f : data_) count += f.samples.size();
  OAR_ASSIGN(const Split split, draw_held_out(options_.hold_out, count, options_.seed, "samples"));
  for (FileSamples& f : data_) {
    FileSamples out{f.file, {}}, rest{f.file, {}, f.cut, f.unlearned};
    for (Sample& s : f.samples) {
      const bool held = next < split.held_out.size() && split.held_out[next] == at++;
      next += held ? 1 : 0;
      (held ? out : rest).samples.push_back(std::move(s));
    }
    f = std::move(rest);
    if (!out.samples.empty()) held_out_.push_back(std::move(out));
  }
  return ok_status();
}

Status Trainer::load_text(const std::string& path, const Logger& log) {
  if (!options_.labels.empty())
    return invalid_argument("--labels names the classes of an encoder's head; this is a language model");
  LanguageModelOptions model;
  model.weights = options_.weights;
  model.log = log;
  OAR_ASSIGN(ModelSource source, read_model_source(path, model, *backend_, {}));
  checkpoint_ = stored_ = std::move(source.checkpoint);
  config_ = std::move(source.config);
  OAR_ASSIGN(const RotationOptions rotation, stored_rotation(checkpoint_.config));
  if (rewritten(checkpoint_, rotation))
    return unimplemented(
        cat(path, ": its matrices were rotated or scaled when they were quantized, and read ",
            "other numbers than an adapter does; finetune the folder that it was made from, ",
            "with --weights int4 say"));
  OAR_RETURN_IF_ERROR(
      quantize_as_kernels(checkpoint_, config_, options_.weights, backend_->host_pool(), log));
  LanguageModelOptions served;
  if (const Status s = build_serving_graph(checkpoint_, config_, served).status(); !s.ok())
    return Status(s.code(), cat("what comes out could not be served: ", s.message()));
  OAR_ASSIGN(tokenizer_, make_tokenizer(checkpoint_.tokenizer, config_.vocab));
  std::string& turns = checkpoint_.tokenizer.chat_template;
  const bool own_turns = !turns.empty();
  if (!own_turns) turns = default_chat_template(*tokenizer_);
  OAR_ASSIGN(const ChatTemplate chat, ChatTemplate::parse(turns));
  DataModel data{*tokenizer_, chat, {}, {}};
  if (const auto bos = tokenizer_->bos_id()) data.bos_token = tokenizer_->token_text(*bos);
  if (const auto eos = tokenizer_->eos_id()) data.eos_token = tokenizer_->token_text(*eos);
  if (options_.samples.length > config_.served_context())
    return invalid_argument(cat("--length ", options_.samples.length, " is above the model's context of ",
                                config_.served_context()));
  OAR_ASSIGN(data_, load_samples(options_.data, "--data", data, options_.samples));
  DataOptions fixed = options_.samples;
  fixed.draw_cuts = false;
  OAR_ASSIGN(held_out_, load_samples(options_.held_out, "--eval", data, fixed));
  const auto has_document = [](const FileSamples& f) {
    return std::any_of(f.samples.begin(), f.samples.end(), [](const Sample& s) { return s.document; });
  };
  if (options_.samples.draw_cuts && !data_.empty() && std::none_of(data_.begin(), data_.end(), has_document))
    return invalid_argument("--cuts drawn: --data has no document (.txt, .md or \"text\") to cut");
  chats_in_default_ = !own_turns && std::any_of(data_.begin(), data_.end(),
                                                [](const FileSamples& f) { return f.conversations > 0; });
  if (!own_turns && !chats_in_default_) turns.clear();
  return ok_status();
}

Status Trainer::load_labels(const std::string& path, const Logger& log) {
  if (options_.weights != "auto" && !options_.weights.empty())
    return unimplemented(
        cat("--weights ", options_.weights, ": an encoder is trained as it is stored (auto)"));
  if (options_.samples.draw_cuts)
    return invalid_argument("--cuts drawn is of documents; what an encoder learns is labelled, not cut");
  OAR_ASSIGN(checkpoint_, load_checkpoint(path));
  for (const std::string& notice : checkpoint_.notices) log(LogLevel::kWarning, notice);
  OAR_ASSIGN(encoder_, read_encoder_config(checkpoint_.config));
  if (!encoder_->unknown_keys.empty())
    log(LogLevel::kWarning, unknown_keys_notice(encoder_->model_type, encoder_->unknown_keys));
  config_ = *encoder_;
  config_.max_context = encoder_->max_tokens();
  if (options_.samples.length > config_.max_context)
    return invalid_argument(
        cat("--length ", options_.samples.length, " is above the model's context of ", config_.max_context));
  OAR_ASSIGN(const auto data, load_labelled(options_.data, "--data"));
  OAR_ASSIGN(const auto held_out, load_labelled(options_.held_out, "--eval"));
  if (!data.empty()) head_ = data[0].head;
  if (!held_out.empty() && held_out[0].head != head_)
    return invalid_argument("--data and --eval differ: one labels texts, the other tokens");
  auto stored = classes_of(checkpoint_, *encoder_, head_);
  if (!stored.ok() && options_.labels.empty()) return stored.status();
  classes_ = stored.ok() ? *stored : std::vector<std::string>();
  new_head_ = classes_.empty() || (!options_.labels.empty() && options_.labels != classes_);
  if (new_head_) {
    classes_ = options_.labels.empty() ? labels_of(data) : options_.labels;
    if (classes_.size() < 2)
      return invalid_argument(
          cat(options_.labels.empty() ? "--data has" : "--labels names",
              " one label, which leaves nothing to learn; name all classes with --labels"));
    if (std::set<std::string>(classes_.begin(), classes_.end()).size() != classes_.size())
      return invalid_argument("--labels has a name twice");
    OAR_RETURN_IF_ERROR(give_head(checkpoint_, *encoder_, head_, classes_, options_.seed));
  }
  OAR_ASSIGN(const auto text, make_text_encoder(path, checkpoint_.tokenizer, json::value(checkpoint_.config),
                                                options_.samples.length));
  OAR_ASSIGN(data_, label_samples(data, classes_, *text, options_.samples));
  OAR_ASSIGN(held_out_, label_samples(held_out, classes_, *text, options_.samples));
  return ok_status();
}

Result<std::vector<Datum>> Trainer::inputs(const PackedRows& rows, float weight, uint64_t draw) const {
  std::vector<Datum> out(5);
  std::vector<int32_t> positions = rows.positions;
  // Padding may be longer than a text can be.
  const auto first = static_cast<int32_t>(encoder_ ? encoder_->first_position : 0);
  for (int32_t& p : positions) p = first + std::min(p, static_cast<int32_t>(config_.max_context - 1));
  OAR_ASSIGN(out[0], datum_of(rows.tokens));
  OAR_ASSIGN(out[1], datum_of(positions));
  OAR_ASSIGN(out[2], datum_of(rows.segments));
  OAR_ASSIGN(out[3], datum_of(rows.targets));
  OAR_ASSIGN(out[4], datum_of(weight));
  if (encoder_ && encoder_->types > 0) {
    OAR_ASSIGN(Datum types, datum_of(rows.types));
    out.push_back(std::move(types));
  }
  if (balanced_) {
    OAR_ASSIGN(Tensor share, Tensor::zeros({static_cast<int64_t>(positions.size())}, Format::f32()));
    std::fill_n(share.mutable_values<float>().begin(), rows.used,
                1 / static_cast<float>(std::max<int64_t>(rows.used, 1)));
    out.emplace_back(std::move(share));
  }
  if (options_.graph.draws()) {
    OAR_ASSIGN(Tensor key, Tensor::zeros({}, Format::of(DType::kI64)));
    key.mutable_values<int64_t>()[0] = static_cast<int64_t>(draw);
    out.emplace_back(std::move(key));
  }
  return out;
}

Status Trainer::size_up() {
  constexpr int64_t kPrompt = 64;  // most of it
  const bool serves = evaluates_ && !encoder_ && !options_.graph.full;
  if (evaluates_ && !encoder_ && options_.sample_tokens > 0)
    sample_rows_ =
        std::min({kPrompt + options_.sample_tokens, options_.graph.tokens, config_.served_context()});
  options_.graph.sample_rows = serves ? 0 : sample_rows_;
  options_.graph.micro_batches = options_.accumulate * options_.ranks();
  options_.graph.update = options_.update_in_step();
  OAR_ASSIGN(ModelGraphs graphs, encoder_
                                     ? build_encoder_graphs(checkpoint_, *encoder_, head_, options_.graph)
                                     : build_model_graphs(checkpoint_, config_, options_.graph));
  options_.graph.lora.fan_in_fan_out = config_.linear_out_in || !options_.graph.copies->turned.empty();
  precision_ = std::move(graphs.precision);
  balanced_ = graphs.balanced;
  scans_ = std::count_if(graphs.step->nodes().begin(), graphs.step->nodes().end(),
                         [](const Node& n) { return n.op == &op_segment_scan; });
  const int64_t V = encoder_ ? static_cast<int64_t>(classes_.size()) : config_.vocab;
  memory_.logits = static_cast<uint64_t>(logit_rows(options_.graph.tokens, V) * V) * sizeof(float);
  OAR_ASSIGN(const auto first, inputs(pack_rows({}, options_.graph.tokens), 0));
  OAR_RETURN_IF_ERROR(
      prepare(graphs.step, evaluates_ && !serves ? graphs.loss : nullptr, graphs.parameters, first, first));
  if (!graphs.sample) return ok_status();
  OAR_ASSIGN(sample_runner_, Runner::make(graphs.sample, packed_, nullptr));
  sample_runner_->states = loss_runner_->states;
  OAR_ASSIGN(std::vector<Datum> given, inputs(pack_rows({}, sample_rows_), 0));
  OAR_RETURN_IF_ERROR(sample_runner_->size(std::move(given)));
  memory_.activations += sample_runner_->plan->peak_bytes();
  return ok_status();
}

// The first of these that fits: layers that are computed again, then ever shorter micro-batches of such.
std::string Trainer::what_fits() const {
  GraphOptions graph = options_.graph;
  const auto fits = [&] {
    Trainer other;
    other.options_ = options_, other.options_.graph = graph;
    other.checkpoint_ = checkpoint_, other.config_ = config_;
    other.encoder_ = encoder_, other.head_ = head_, other.classes_ = classes_;
    other.backend_ = backend_, other.evaluates_ = evaluates_;
    const uint64_t beside = served_ ? served_->bytes() : 0;
    return other.size_up().ok() && other.memory_.to_get() + beside <= free_memory();
  };
  const auto& names = passes::recompute_names();
  std::string flag;
  while (static_cast<size_t>(graph.recompute) + 1 < names.size()) {
    graph.recompute = static_cast<Recompute>(static_cast<size_t>(graph.recompute) + 1);
    flag = cat("--recompute ", names[static_cast<size_t>(graph.recompute)], " ");
    if (fits()) return flag + "would fit";
  }
  if (memory_.states() < free_memory()) {
    while ((graph.tokens /= 2) >= 16)
      if (fits()) return cat(flag, "--tokens ", graph.tokens, " --length ", graph.tokens, " would fit");
  }
  return cat("no micro-batch would fit; ",
             options_.graph.fresh  ? "a smaller model"
             : options_.graph.full ? "an adapter (--lora)"
                                   : "a smaller rank of --lora or a smaller model",
             " takes less");
}

// Held-out data of an adapter go through the graph, kernels and cache that serve it.
Status Trainer::serve() {
  if (options_.group && options_.group->rank() > 0) return ok_status();  // the first rank evaluates
  LanguageModelOptions o;
  o.weights = options_.weights;
  o.max_loras = 1, o.max_lora_rank = options_.graph.lora.rank;
  o.max_context = std::max(options_.samples.length, sample_rows_);
  OAR_ASSIGN(served_, EvalModel::open(stored_, o, backend_, logit_rows(o.max_context, config_.vocab)));
  memory_.activations += served_->bytes();
  // What is free lacks them already; what may be taken does not.
  const bool counted = data_.empty() || options_.may_take == 0;
  return counted ? ok_status() : check_memory([&] { return what_fits(); });
}

Status Trainer::plan() {
  OAR_RETURN_IF_ERROR(size_up());
  if (!data_.empty()) {
    if (options_.graph.full || encoder_) OAR_RETURN_IF_ERROR(check_writable(checkpoint_));
    OAR_RETURN_IF_ERROR(check_memory([&] { return what_fits(); }));
  }
  if (evaluates_ && !loss_runner_) OAR_RETURN_IF_ERROR(serve());
  stored_ = {};
  if (data_.empty()) return ok_status();
  std::vector<Tensor> values;
  for (size_t k = 0; k < parameters_.size(); ++k) {
    OAR_ASSIGN(Tensor value, initial_value(parameters_[k], k, checkpoint_, options_.seed));
    values.push_back(std::move(value));
  }
  OAR_RETURN_IF_ERROR(begin(std::move(values)));
  if (sample_runner_) sample_runner_->states = final_values();
  return ok_status();
}

std::vector<std::string> Trainer::notes() const {
  std::vector<std::string> out;
  for (const FileSamples& f : data_) {
    if (f.cut > 0)
      out.push_back(cat(f.file.path, ": ", f.cut, " of ", f.samples.size(), " samples were cut at ",
                        options_.samples.length, " tokens"));
    if (f.unlearned > 0)
      out.push_back(cat(f.file.path, ": ", f.unlearned,
                        " answers are not learned: the chat template shows them otherwise once more turns "
                        "follow"));
  }
  if (chats_in_default_)
    out.push_back(
        cat("the model has no chat template: conversations are rendered as ",
            options_.graph.full ? "ChatML, which what comes out has" : "ChatML, as when it serves"));
  if (!encoder_ && config_.tied) {
    const auto& embedding = find_architecture(config_.model_type)->embedding;
    const bool learned = std::any_of(parameters_.begin(), parameters_.end(),
                                     [&](const Parameter& p) { return p.name == embedding; });
    out.push_back(
        cat("the head is the embedding table (tied): ",
            learned ? "one parameter, whose gradient is the sum of both" : "one table, which stays"));
  }
  const auto& targets = options_.graph.lora.targets;
  const bool all = !options_.graph.full && std::find(targets.begin(), targets.end(), "all") != targets.end();
  if (scans_ > 0)
    out.push_back(cat(scans_, " layers keep a state of ", config_.scan.heads, " x ", config_.scan.key_dim,
                      " x ", config_.scan.value_dim,
                      " numbers, which training computes token by token in double on one thread: slow"));
  if (const uint64_t bytes = WeightCopies::bytes(options_.graph.copies->experts); bytes > 0)
    out.push_back(cat("experts that the checkpoint keeps in stacks, turned or interleaved, are copied: ",
                      format_bytes(bytes)));
  if (const uint64_t bytes = options_.graph.copies->moved; bytes > 0)
    out.push_back(
        cat("matrices that the checkpoint keeps turned, interleaved or by heads are made anew from it ",
            "for each micro-batch, and so are their gradients: ", format_bytes(bytes), " each way"));
  if (const uint64_t bytes = WeightCopies::bytes(options_.graph.copies->turned); bytes > 0)
    out.push_back(
        cat("matrices that the checkpoint keeps as (inputs, outputs) are copied: ", format_bytes(bytes)));
  if (const uint64_t bytes = WeightCopies::bytes(options_.graph.copies->heads); bytes > 0) {
    out.push_back(
        cat("attention over a latent reads parts of kv_b_proj, head by head, which are copied in f32: ",
            format_bytes(bytes)));
    if (all) out.push_back("targets=all leaves kv_b_proj out: a matrix that is read by parts has no adapter");
  }
  const auto reads_itself = [](const auto& t) { return mamba_output(t.first.substr(0, t.first.rfind('.'))); };
  if (all && std::any_of(checkpoint_.tensors.begin(), checkpoint_.tensors.end(), reads_itself))
    out.push_back("targets=all leaves out_proj of Mamba-2 layers out: PEFT has no adapter for it");
  const auto doubles =
      std::count_if(checkpoint_.tensors.begin(), checkpoint_.tensors.end(),
                    [](const auto& t) { return t.second.format() == Format::of(DType::kF64); });
  if (doubles > 0)
    out.push_back(cat(doubles, " tensors are f64: they are computed with, and learned, in f32"));
  if (precision_.narrow > 0) {
    std::string slow;
    for (const auto& [op, count] : precision_.widened)
      slow += cat(slow.empty() ? "" : ", ", op, " x ", count);
    out.push_back(cat(passes::amp_names()[static_cast<size_t>(options_.graph.precision.level)], ": ",
                      precision_.narrow, " of ", precision_.ops, " ops of a step in bf16; conversions move ",
                      format_bytes(precision_.cast_bytes), " a micro-batch"));
    if (!slow.empty())
      out.push_back(cat("  without a bf16 kernel, on widened copies at the speed of f32: ", slow));
  }
  if (sample_rows_ > 0)
    out.push_back(cat("each held-out loss comes with a sample of up to ", options_.sample_tokens, " tokens",
                      sample_runner_ ? cat(", which takes ", sample_rows_, " rows each") : "",
                      "; --sample-tokens 0: none"));
  if (const std::string dropout = dropout_in(checkpoint_.config); !dropout.empty())
    out.push_back(
        cat("config.json names dropout that is not applied: ", dropout,
            options_.graph.full ? "; --dropout is" : "; adapters have their own (--lora dropout=0.1)"));
  if (!classes_.empty())
    out.push_back(cat(new_head_ ? "a new" : "the model's", " head of ", class_list(classes_)));
  return out;
}

std::string Trainer::size() const {
  size_t samples = 0;
  for (const FileSamples& f : data_) samples += f.samples.size();
  return cat(samples, " samples, ", steps(), " steps of ", options_.accumulate * options_.ranks(), " x ",
             options_.graph.tokens, " tokens");
}

Learner::Counts Trainer::counts(Position at) {
  const PackedRows rows = packer_->rows(at.epoch, at.batch);
  return {rows.used, rows.learned};
}

Result<std::vector<Datum>> Trainer::inputs(Position at, float weight) {
  // Apart from the keys of samples' order.
  const uint64_t draw = order_key(~options_.seed, at.epoch, static_cast<uint64_t>(at.batch));
  return inputs(packer_->rows(at.epoch, at.batch), weight, draw);
}

Result<HeldOutReport> Trainer::evaluate() {
  if (held_out_.empty()) return Status(StatusCode::kFailedPrecondition, "there is no held-out data");
  return served_ ? evaluate_served() : evaluate_by_graph();
}

Result<HeldOutReport> Trainer::evaluate_served() {
  HeldOutReport out;
  int64_t learned = 0;
  const auto through = [&]() -> Status {
    TensorMap pairs;
    for (size_t k = 0; k < parameters_.size(); ++k) pairs[parameters_[k].name] = final_values()[k];
    const json::object config = adapter_config(parameters_, options_.graph.lora, base_name_);
    OAR_ASSIGN(const PeftAdapter adapter, parse_peft_adapter(config, pairs));
    OAR_RETURN_IF_ERROR(served_->use_adapter(adapter));
    for (const FileSamples& f : held_out_) {
      for (const Sample& s : f.samples) {
        OAR_ASSIGN(const std::vector<float> told, served_->log_probabilities(s.tokens));
        double loss = 0;
        for (size_t k = 0; k < told.size(); ++k)
          if (s.learned[k] != 0) loss -= static_cast<double>(told[k]), ++learned;
        out.loss += loss;
      }
    }
    return sample_rows_ > 0 ? go_on(out) : ok_status();
  };
  if (const Status s = through(); !s.ok()) {  // a graph finds out where
    OAR_ASSIGN(ModelGraphs graphs, build_model_graphs(checkpoint_, config_, options_.graph));
    OAR_ASSIGN(loss_runner_, Runner::make(graphs.loss, packed_, nullptr));
    loss_runner_->states = final_values();
    OAR_ASSIGN(std::vector<Datum> given, inputs(pack_rows({}, options_.graph.tokens), 0));
    OAR_RETURN_IF_ERROR(loss_runner_->size(std::move(given)));
    OAR_RETURN_IF_ERROR(evaluate_by_graph().status());
    return s;
  }
  out.loss /= static_cast<double>(std::max<int64_t>(learned, 1));
  return out;
}

Result<HeldOutReport> Trainer::evaluate_by_graph() {
  HeldOutReport out;
  int64_t learned = 0, hits = 0;
  for (int64_t k = 0; k < held_out_packer_->batches(0); ++k) {
    const PackedRows rows = held_out_packer_->rows(0, k);
    if (rows.learned == 0) continue;
    const auto weight = static_cast<float>(1.0 / static_cast<double>(rows.learned));
    OAR_ASSIGN(std::vector<Datum> given, inputs(rows, weight));
    OAR_ASSIGN(const auto results, loss_runner_->run(given));
    if (!std::isfinite(results[0].tensor.values<float>()[0]))
      return not_finite(*loss_runner_, std::move(given), done(), held_out_packer_->describe(0, k), true);
    out.loss += static_cast<double>(results[0].tensor.values<float>()[0]) * static_cast<double>(rows.learned);
    hits += results[1].tensor.values<int32_t>()[0];
    learned += rows.learned;
  }
  const auto count = static_cast<double>(std::max<int64_t>(learned, 1));
  out.loss /= count;
  if (encoder_) out.accuracy = static_cast<double>(hits) / count;
  if (sample_runner_) OAR_RETURN_IF_ERROR(go_on(out));
  return out;
}

// The likeliest token by token, up to one that is no text: each computes all rows. Before what is learned of
// the first sample lies the prompt; of a text that is learned as a whole it is a few tokens.
Status Trainer::go_on(HeldOutReport& report) {
  constexpr size_t kFew = 16;
  const Sample& of = held_out_[0].samples[0];
  const auto rows = static_cast<size_t>(sample_rows_);
  const auto most = static_cast<size_t>(options_.sample_tokens);
  const auto learned = std::find(of.learned.begin(), of.learned.end(), 1) - of.learned.begin();
  const size_t end = learned > 1 ? static_cast<size_t>(learned) : std::min(kFew, (of.tokens.size() + 1) / 2);
  const size_t from = end - std::min(end, std::max(rows - std::min(rows, most), rows / 2));
  Sample s;
  s.tokens.assign(of.tokens.begin() + static_cast<ptrdiff_t>(from),
                  of.tokens.begin() + static_cast<ptrdiff_t>(end));
  report.prompt = repair_utf8(tokenizer_->decode(s.tokens));
  IncrementalDetokenizer text(tokenizer_);
  text.prime(s.tokens);
  if (served_) served_->reset();
  for (size_t k = 0; k < most && s.tokens.size() < rows; ++k) {
    OAR_ASSIGN(const int32_t next, likeliest(s));
    if (tokenizer_->is_special(next)) break;
    s.tokens.push_back(next);
    report.continuation += text.push(next);
  }
  report.continuation += text.finish();
  return ok_status();
}

// Behind all of `before`, of which what serves has the tokens of the last call.
Result<int32_t> Trainer::likeliest(const Sample& before) {
  if (served_) {
    std::span<const float> logits;
    const auto end = static_cast<int64_t>(before.tokens.size());
    for (int64_t at = served_->length(); at < end; at = served_->length()) {
      const auto count = static_cast<size_t>(std::min(end - at, served_->rows()));
      OAR_ASSIGN(logits, served_->append(std::span(before.tokens).subspan(static_cast<size_t>(at), count)));
    }
    const auto row = logits.last(static_cast<size_t>(config_.vocab));
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  }
  Sample asked = before;
  asked.tokens.push_back(0);  // what the row before it is asked for
  asked.learned.assign(asked.tokens.size(), 0);
  asked.learned.back() = 1;
  const Sample* const one = &asked;
  OAR_ASSIGN(std::vector<Datum> given, inputs(pack_rows({&one, 1}, sample_rows_), 1));
  OAR_ASSIGN(const auto results, sample_runner_->run(std::move(given)));
  return results[2].tensor.values<int32_t>()[0];
}

json::object Trainer::described() const {
  const TrainerOptions& o = options_;
  const auto list = [](const std::vector<std::string>& names) {
    return json::array(names.begin(), names.end());
  };
  return {{"model", base_name_},
          {"weights", o.weights},
          {"model's tensors", model_hash_},
          {"data", data_hash_},
          {"eval", held_out_hash_},
          {"labels", list(classes_)},
          {"length", o.samples.length},
          {"cuts are drawn", o.samples.draw_cuts},
          {"tokens", o.graph.tokens},
          {"full", o.graph.full},
          {"dropout", o.graph.full ? o.graph.dropout : 0.0},
          {"lora rank", o.graph.full ? 0 : o.graph.lora.rank},
          {"lora alpha", o.graph.full ? 0.0 : o.graph.lora.alpha},
          {"lora dropout", o.graph.full ? 0.0 : o.graph.lora.dropout},
          {"lora targets", o.graph.full ? json::array() : list(o.graph.lora.targets)},
          {"freeze", list(o.graph.freeze)},
          {"precision", passes::amp_names()[static_cast<size_t>(o.graph.precision.level)]},
          {"white", list(o.graph.precision.white)},
          {"black", list(o.graph.precision.black)}};
}

Status Trainer::write_result(const std::string& folder) const {
  const LoraOptions& lora = options_.graph.lora;
  if (!options_.graph.full && !encoder_)
    return write_adapter(folder, parameters_, final_values(), lora, base_name_, config_.model_type);
  return write_model(folder, checkpoint_, parameters_, final_values(),
                     lora.alpha / static_cast<double>(lora.rank));
}

}  // namespace oar::train
