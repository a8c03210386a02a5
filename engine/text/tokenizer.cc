// The pipeline. Everything it calls is const; what one call writes is on its stack or in its scratch.
#include "engine/text/tokenizer.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/text/tokenizer_parts.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {

constexpr size_t kMaxTextBytes = size_t{1}
                                 << 30;  // positions in models are int32; normalization may triple the text

// One encode() call.
class Encoding {
 public:
  Encoding(const TokenizerParts& parts, bool parse_special, size_t text_bytes)
      : parts_(parts), parse_special_(parse_special) {
    model_scratch_.cache.resize_for(text_bytes);
    pattern_scratch_.refill(text_bytes);
  }

  // `walk` splits text at the tokens of `added`; `rest` gets what lies between, with its offset.
  template <class Rest>
  Status walk(const AddedTokens& added, std::string_view text, Rest&& rest) {
    if (added.empty()) return rest(text, size_t{0});
    size_t done = 0, cursor = 0;
    while (const auto hit = added.next(text, done, cursor, parse_special_)) {
      if (hit->begin > done) OAR_RETURN_IF_ERROR(rest(text.substr(done, hit->begin - done), done));
      ids.push_back(hit->id);
      done = hit->end;
    }
    if (done < text.size()) return rest(text.substr(done), done);
    return ok_status();
  }

  Status run(std::string_view text) {
    return walk(parts_.raw_added, text, [this](std::string_view section, size_t offset) {
      const bool at_start = offset == 0;
      if (!parts_.normalizer) return normalized(section, at_start);
      std::string out;
      out.reserve(section.size() + section.size() / 4 + 8);
      OAR_RETURN_IF_ERROR(parts_.normalizer->apply(section, out));
      if (out.size() > kMaxTextBytes) return resource_exhausted("the normalized text exceeds 2^30 bytes");
      return normalized(out, at_start);
    });
  }

  std::vector<int32_t> ids;

 private:
  Status normalized(std::string_view text, bool at_start) {
    return walk(parts_.normalized_added, text, [this, at_start](std::string_view section, size_t offset) {
      const Piece piece{section, at_start && offset == 0};
      const auto model = [this](Piece p) { parts_.model->encode(p.text, model_scratch_, ids); };
      if (parts_.pretokenizer) return parts_.pretokenizer->split(piece, pattern_scratch_, model);
      model(piece);
      return ok_status();
    });
  }

  const TokenizerParts& parts_;
  const bool parse_special_;
  ModelScratch model_scratch_;
  SplitPattern::Scratch pattern_scratch_;
};

}  // namespace

const AddedToken* TokenizerParts::find_added(int32_t id) const {
  const auto it = std::lower_bound(added.begin(), added.end(), id,
                                   [](const AddedToken& t, int32_t value) { return t.id < value; });
  return it != added.end() && it->id == id ? &*it : nullptr;
}

Status index_added_tokens(TokenizerParts& parts) {
  std::stable_sort(parts.added.begin(), parts.added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  parts.added.erase(std::unique(parts.added.begin(), parts.added.end(),
                                [](const AddedToken& a, const AddedToken& b) { return a.id == b.id; }),
                    parts.added.end());
  std::vector<AddedToken> raw, in_normalized;
  std::vector<std::string> raw_patterns, normalized_patterns;
  parts.decode_texts.clear();
  for (const AddedToken& t : parts.added) {
    std::string pattern = t.content;
    if (t.normalized && parts.normalizer && !pattern.empty()) {
      pattern.clear();
      OAR_RETURN_IF_ERROR(parts.normalizer->apply(t.content, pattern));
    }
    parts.decode_texts.push_back(pattern);
    (t.normalized ? in_normalized : raw).push_back(t);
    (t.normalized ? normalized_patterns : raw_patterns).push_back(std::move(pattern));
  }
  OAR_ASSIGN(parts.raw_added, AddedTokens::create(std::move(raw), raw_patterns));
  OAR_ASSIGN(parts.normalized_added, AddedTokens::create(std::move(in_normalized), normalized_patterns));
  return ok_status();
}

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes)
    return invalid_argument(
        cat("a text of ", text.size(), " bytes; the tokenizer takes at most ", kMaxTextBytes));
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = repair_utf8(text, parts_->repair_each_byte);
    text = repaired;
  }
  Encoding e(*parts_, options.parse_special, text.size());
  e.ids.reserve(text.size() / 4 + 8);
  if (options.add_special_tokens) e.ids = parts_->prefix;
  OAR_RETURN_IF_ERROR(e.run(text));
  if (options.add_special_tokens) e.ids.insert(e.ids.end(), parts_->suffix.begin(), parts_->suffix.end());
  return std::move(e.ids);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string out;
  DecodeStream stream(parts_->decoder, skip_special_tokens);
  for (const int32_t id : ids) stream.push(id, out);
  stream.finish(out);
  return out;
}

int32_t Tokenizer::vocab_size() const { return parts_->decoder.size(); }

std::string_view Tokenizer::token_text(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  if (const AddedToken* t = parts_->find_added(id)) return t->content;
  return id < parts_->vocabulary.size() ? parts_->vocabulary.text(id) : std::string_view{};
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id < 0 || id >= vocab_size() ? std::string_view{} : parts_->decoder.bytes(id);
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view text) const {
  for (const AddedToken& t : parts_->added)
    if (t.content == text) return t.id;
  const int32_t id = parts_->vocabulary.find(text);
  return id < 0 ? std::nullopt : std::optional(id);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && parts_->decoder.special(id);
}

std::optional<int32_t> Tokenizer::bos_id() const { return parts_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return parts_->eos; }
std::optional<int32_t> Tokenizer::pad_id() const { return parts_->pad; }
std::optional<int32_t> Tokenizer::unk_id() const { return parts_->unk; }
bool Tokenizer::adds_bos() const { return parts_->adds_bos; }
bool Tokenizer::adds_eos() const { return parts_->adds_eos; }
const Decoder& Tokenizer::decoder() const { return parts_->decoder; }

}  // namespace oar
