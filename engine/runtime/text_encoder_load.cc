// From a folder to an encoder: which graph, which tokenizer, and what the files beside them say about
// pooling, lengths and pairs.
#include <algorithm>
#include <filesystem>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/loader/tokenizer_files.h"
#include "engine/runtime/encoder_model.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/text_encoder.h"
#include "engine/tensor/charge.h"
#include "engine/tensor/mapped_file.h"

namespace oar {
namespace {

namespace fs = std::filesystem;
using Info = TextEncoder::Info;

bool is_file(const fs::path& p) {
  std::error_code ec;
  return fs::is_regular_file(p, ec);
}

// An absent file is null.
Result<json::value> read_json(const fs::path& path) {
  if (!is_file(path)) return json::value();
  OAR_ASSIGN(const std::string text, read_small_file(path.string(), 16 << 20));
  return parse_json(text, path.string());
}

const json::value* member(const json::value& v, const char* key) {
  const json::object* o = v.if_object();
  return o ? o->if_contains(key) : nullptr;
}
bool flag(const json::value& v, const char* key, bool fallback = false) {
  const json::value* m = member(v, key);
  return m && m->is_bool() ? m->get_bool() : fallback;
}
int64_t number(const json::value& v, const char* key, int64_t fallback) {
  const json::value* m = member(v, key);
  return m && m->is_int64() ? m->get_int64() : fallback;
}
std::string text(const json::value& v, const char* key) {
  const json::value* m = member(v, key);
  return m && m->is_string() ? std::string(m->get_string()) : std::string();
}

Result<std::vector<Pooling>> read_pooling(const json::value& config) {
  struct Mode {
    const char* key;
    const char* name;  // its newer spelling, in "pooling_mode"
    Pooling pooling;
  };
  static constexpr Mode kModes[] = {
      {"pooling_mode_cls_token", "cls", Pooling::kFirst},
      {"pooling_mode_max_tokens", "max", Pooling::kMax},
      {"pooling_mode_mean_tokens", "mean", Pooling::kMean},
      {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::kMeanSqrt},
      {"pooling_mode_weightedmean_tokens", "weightedmean", Pooling::kWeightedMean},
      {"pooling_mode_lasttoken", "lasttoken", Pooling::kLast}};
  std::vector<Pooling> out;
  const std::string named = text(config, "pooling_mode");
  for (const Mode& m : kModes) {
    if (flag(config, m.key) || named == m.name) out.push_back(m.pooling);
  }
  if (out.empty()) return invalid_argument("the Pooling module's config names no pooling mode that is known");
  return out;
}

// modules.json of sentence-transformers.
Status read_modules(const fs::path& folder, Info& info) {
  OAR_ASSIGN(const json::value modules, read_json(folder / "modules.json"));
  if (!modules.is_array()) return ok_status();
  info.normalize = false;
  for (const json::value& m : modules.get_array()) {
    const std::string type = text(m, "type");
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name == "Pooling") {
      const fs::path path = text(m, "path");
      if (path.is_absolute() || path.string().find("..") != std::string::npos)
        return invalid_argument(cat("modules.json: the path ", path.string(), " leaves the model's folder"));
      OAR_ASSIGN(const json::value config, read_json(folder / path / "config.json"));
      OAR_ASSIGN(info.pooling, read_pooling(config));
      info.dimensions =
          number(config, "word_embedding_dimension", 0) * static_cast<int64_t>(info.pooling.size());
    } else if (name == "Normalize") {
      info.normalize = true;
    } else if (name != "Transformer") {
      return unimplemented(
          cat("modules.json: the module ", type, " is not offered; Transformer, Pooling and Normalize are"));
    }
  }
  return ok_status();
}

// How two texts become one row, from tokenizer.json's post-processor; BERT's way where it says nothing.
Status read_pairs(const std::string& tokenizer_json, Info& info) {
  if (tokenizer_json.empty()) return ok_status();
  OAR_ASSIGN(const json::value root, parse_json(tokenizer_json, "tokenizer.json"));
  const json::value* post = member(root, "post_processor");
  if (!post) return ok_status();
  if (text(*post, "type") == "RobertaProcessing") info.pair_separators = 2, info.pair_type = 0;
  const json::value* pair = member(*post, "pair");
  if (!pair || !pair->is_array()) return ok_status();
  int separators = 0;
  bool between = false;
  for (const json::value& piece : pair->get_array()) {
    if (const json::value* sequence = member(piece, "Sequence")) {
      if (text(*sequence, "id") == "B") {
        info.pair_type = static_cast<int>(std::clamp<int64_t>(number(*sequence, "type_id", 1), 0, 1));
        info.pair_separators = std::max(1, separators);
      }
      between = text(*sequence, "id") == "A";
    } else if (between) {
      ++separators;
    }
  }
  return ok_status();
}

// The tokens a row may have: the least of what the files say.
Status read_lengths(const fs::path& folder, const TokenizerFiles& files, Info& info) {
  const auto limit = [&](int64_t most) {
    if (most > 0 && most < (int64_t{1} << 30)) info.max_tokens = std::min(info.max_tokens, most);
  };
  OAR_ASSIGN(const json::value sentence, read_json(folder / "sentence_bert_config.json"));
  limit(number(sentence, "max_seq_length", 0));
  if (!files.tokenizer_config_json.empty()) {
    OAR_ASSIGN(const json::value config, parse_json(files.tokenizer_config_json, "tokenizer_config.json"));
    limit(number(config, "model_max_length", 0));
  }
  return ok_status();
}

// Which of a graph's inputs and outputs are which, by their names and ranks.
Status find_tensors(const TensorRunner& model, bool classifier, Info& info) {
  for (size_t k = 0; k < model.inputs().size(); ++k) {
    const IoSpec& io = model.inputs()[k];
    const int at = static_cast<int>(k);
    const bool integer = io.typed && (io.dtype == DType::kI64 || io.dtype == DType::kI32);
    if (io.name.find("input_ids") != std::string::npos || io.name == "ids") info.ids_input = at;
    else if (io.name.find("mask") != std::string::npos) info.mask_input = at;
    else if (io.name.find("token_type") != std::string::npos || io.name.find("segment") != std::string::npos)
      info.types_input = at;
    else
      return unimplemented(
          cat("the encoder's input '", io.name, "' is none of input_ids, attention_mask, token_type_ids"));
    if (!integer)
      return unimplemented(cat("the encoder's input ", io.to_string(), " is neither i64 nor i32"));
    info.integer = io.dtype;
  }
  if (info.ids_input < 0) return invalid_argument("the encoder has no input input_ids");
  for (const IoSpec& io : model.inputs())
    if (io.dtype != info.integer) return unimplemented("the encoder's inputs are of different integer types");
  for (size_t k = 0; k < model.outputs().size(); ++k) {
    const IoSpec& io = model.outputs()[k];
    const int at = static_cast<int>(k);
    const size_t rank = io.ranked ? io.dims.size() : 0;
    const bool named_logits =
        io.name.find("logits") != std::string::npos || io.name.find("score") != std::string::npos;
    if (io.name == "sentence_embedding") info.vector_output = at;
    else if ((named_logits && rank != 3) || (classifier && rank == 2)) info.logits_output = at;
    else if (info.hidden_output < 0 &&
             (rank == 3 || io.name == "last_hidden_state" || io.name == "token_embeddings"))
      info.hidden_output = at;
    else if (info.hidden_output < 0 && model.outputs().size() == 1 && rank == 2) info.vector_output = at;
  }
  if (info.logits_output >= 0) {
    const IoSpec& io = model.outputs()[static_cast<size_t>(info.logits_output)];
    info.labels = io.ranked && io.dims.size() == 2 && io.dims[1].value >= 0 ? io.dims[1].value : 1;
  }
  if (info.hidden_output >= 0) {
    const IoSpec& io = model.outputs()[static_cast<size_t>(info.hidden_output)];
    if (io.ranked && io.dims.size() == 3 && io.dims[2].value > 0 && info.dimensions == 0)
      info.dimensions = io.dims[2].value * static_cast<int64_t>(info.pooling.size());
  }
  if (info.hidden_output < 0 && info.vector_output < 0 && info.logits_output < 0)
    return unimplemented(
        "the encoder has no output that is known: last_hidden_state, sentence_embedding or logits");
  return ok_status();
}

// The tokenizer, and what of Info the files beside a model say.
Result<TokenizerPtr> read_text_side(const fs::path& folder, const TokenizerFiles& files,
                                    const json::value& config, Info& info) {
  OAR_ASSIGN(TokenizerPtr tokenizer, make_tokenizer(files, 0));
  info.pad = tokenizer->pad_id().value_or(
      static_cast<int32_t>(std::clamp<int64_t>(number(config, "pad_token_id", 0), 0, INT32_MAX)));
  OAR_RETURN_IF_ERROR(read_modules(folder, info));
  OAR_RETURN_IF_ERROR(read_lengths(folder, files, info));
  OAR_RETURN_IF_ERROR(read_pairs(files.tokenizer_json, info));
  return tokenizer;
}

bool has_safetensors(const fs::path& folder) {
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().extension() == ".safetensors") return true;
  return false;
}

// The graph of a file over packed rows where it has that form, else as it is.
Result<std::unique_ptr<TensorRunner>> open_exported(const std::string& path, const PredictorOptions& options,
                                                    Info& info) {
  Status why;
  // Ranges that samples gave are of the file's own layers.
  if (options.calibration) {
    why = unimplemented("calibration is of the file's layers");
  } else {
    OAR_ASSIGN(ImportedModel imported, import_model(path, options.import));
    auto packed = EncoderModel::create(std::move(imported), options);
    if (packed.ok()) {
      info.max_tokens = (*packed)->config().max_tokens();
      info.packs = true;
      return std::unique_ptr<TensorRunner>(std::move(*packed));
    }
    why = packed.status();
    if (why.code() != StatusCode::kUnimplemented) return why;
  }
  if (!options.weights.empty() && options.weights != "auto") {
    return invalid_argument(cat("weights ", options.weights, " is of encoders over packed rows, which ", path,
                                " is not (", why.message(), "): leave weights out, or give precision int8"),
                            "weights");
  }
  options.log(LogLevel::kInfo, cat(path, " runs as it was exported, padded: ", why.message()));
  OAR_ASSIGN(auto runner, Predictor::open(path, options));
  return std::unique_ptr<TensorRunner>(std::move(runner));
}

}  // namespace

bool is_text_encoder(const std::string& folder) {
  const auto config = read_json(fs::path(folder) / "config.json");
  return config.ok() && config->is_object() && is_encoder_config(config->get_object());
}

bool is_encoder_checkpoint(const std::string& folder) {
  return has_safetensors(folder) && is_file(fs::path(folder) / "config.json");
}

Result<std::shared_ptr<const TextEncoder>> make_text_encoder(const std::string& folder,
                                                             const TokenizerFiles& files,
                                                             const json::value& config, int64_t max_tokens) {
  Info info;
  OAR_ASSIGN(TokenizerPtr tokenizer, read_text_side(folder, files, config, info));
  // Lengths that the files name may be the tokenizer's wish alone.
  info.max_tokens = max_tokens;
  return std::make_shared<const TextEncoder>(std::move(tokenizer), std::move(info));
}

Result<LoadedEncoder> load_text_encoder(const std::string& folder_name, const PredictorOptions& given) {
  const fs::path folder = folder_name;
  PredictorOptions options = given;
  if (options.name.empty()) options.name = folder_name;
  OAR_ASSIGN(Reservation loading, options.resources.reserve(options.name));
  const ChargeTo charge(loading);
  Info info;
  OAR_ASSIGN(const json::value config, read_json(folder / "config.json"));
  LoadedEncoder out;
  bool classifier = false;
  if (const json::value* names = member(config, "architectures"); names && names->is_array()) {
    for (const json::value& n : names->get_array())
      classifier =
          classifier || (n.is_string() && std::string_view(n.get_string()).find("SequenceClassification") !=
                                              std::string_view::npos);
  }
  if (is_encoder_checkpoint(folder_name)) {
    OAR_ASSIGN(auto model, EncoderModel::load(folder_name, options));
    info.name = model->config().model_type;
    info.max_tokens = model->config().max_tokens();
    info.dimensions = model->config().width;
    info.packs = true;
    out.runner = std::move(model);
  } else {
    fs::path graph = folder;
    for (const char* name : {"model.onnx", "onnx/model.onnx"})
      if (graph == folder && is_file(folder / name)) graph = folder / name;
    OAR_ASSIGN(out.runner, open_exported(graph.string(), options, info));
    info.name = out.runner->format();
    if (config.is_object() && is_encoder_config(config.get_object())) {
      // The graph computes, whatever the config says; only the length is asked of it.
      const auto c = read_encoder_config(config.get_object());
      if (c.ok()) info.max_tokens = std::min(info.max_tokens, c->max_tokens()), info.name = c->model_type;
    }
  }
  OAR_ASSIGN(const TokenizerFiles files, read_tokenizer_folder(folder_name));
  OAR_ASSIGN(TokenizerPtr tokenizer, read_text_side(folder, files, config, info));
  OAR_RETURN_IF_ERROR(find_tensors(*out.runner, classifier, info));
  if (info.types_input < 0) info.pair_type = 0;
  if (const json::value* names = member(config, "id2label"); names && names->is_object())
    for (size_t k = 0; k < names->get_object().size(); ++k)
      info.label_names.push_back(text(*names, cat(k).c_str()));
  info.labels_apart = text(config, "problem_type") == "multi_label_classification";
  info.matryoshka = flag(config, "is_matryoshka") || member(config, "matryoshka_dimensions") != nullptr;
  // A CrossEncoder's activation; sigmoid unless the model says otherwise.
  for (const json::value* where : {&config, member(config, "sentence_transformers")}) {
    if (!where) continue;
    for (const char* key : {"activation_fn", "sbert_ce_default_activation_function"})
      if (text(*where, key).find("Identity") != std::string::npos) info.sigmoid = false;
  }
  if (info.max_tokens < 4)
    return invalid_argument(cat("the encoder takes ", info.max_tokens, " tokens, which holds no text"));
  out.encoder = std::make_shared<const TextEncoder>(std::move(tokenizer), std::move(info));
  return out;
}

}  // namespace oar
