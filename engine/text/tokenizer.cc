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

// The spans within [offset, offset + size), counted from there.
std::vector<TextSpan> clipped(std::span<const TextSpan> spans, size_t offset, size_t size) {
  std::vector<TextSpan> out;
  for (const TextSpan& s : spans) {
    const size_t begin = std::max(s.begin, offset), end = std::min(s.end, offset + size);
    if (begin < end) out.push_back({begin - offset, end - offset});
  }
  return out;
}

// Moves spans of `text` to where they lie once it is normalized, which takes `size` bytes. Normalizers look
// at a few neighbours of a character: each stretch is normalized behind a little of what precedes it.
Status follow(const Normalizer& normalizer, std::string_view text, size_t size,
              std::vector<TextSpan>& spans) {
  constexpr size_t kNeighbours = 64;  // bytes
  size_t raw = 0, there = 0;
  const auto length = [&](size_t begin, size_t end) -> Result<size_t> {
    std::string out;
    OAR_RETURN_IF_ERROR(normalizer.apply(text.substr(begin, end - begin), out));
    return out.size();
  };
  const auto move_to = [&](size_t position) -> Status {
    size_t from = raw > kNeighbours ? raw - kNeighbours : 0;
    while (from > 0 && (text[from] & 0xC0) == 0x80) --from;
    OAR_ASSIGN(const size_t whole, length(from, position));
    OAR_ASSIGN(const size_t before, length(from, raw));
    there += whole - before;
    raw = position;
    return ok_status();
  };
  if (spans.empty()) return ok_status();
  for (TextSpan& s : spans) {
    OAR_RETURN_IF_ERROR(move_to(s.begin));
    s.begin = there;
    OAR_RETURN_IF_ERROR(move_to(s.end));
    s.end = there;
  }
  OAR_RETURN_IF_ERROR(move_to(text.size()));
  if (there == size) return ok_status();
  return unimplemented(
      "this tokenizer's normalizer hides where the messages' text lies in the prompt; "
      "--allow-special-in-text "
      "reads control tokens everywhere");
}

// Well-formed UTF-8, with `spans` moved along.
std::string repaired_text(std::string_view text, bool each_byte, std::vector<TextSpan>& spans) {
  std::string out;
  size_t done = 0;
  for (TextSpan& s : spans) {
    out += repair_utf8(text.substr(done, s.begin - done), each_byte);
    const size_t begin = out.size();
    out += repair_utf8(text.substr(s.begin, s.end - s.begin), each_byte);
    done = s.end;
    s = {begin, out.size()};
  }
  return out += repair_utf8(text.substr(done), each_byte);
}

// One encode() call.
class Encoding {
 public:
  Encoding(const TokenizerParts& parts, const SpecialTokens& special, size_t text_bytes, EncodeWatch* watch)
      : parts_(parts), special_(special) {
    model_scratch_.slices = EncodeSlices(watch, ids);
    model_scratch_.cache.resize_for(text_bytes);
    pattern_scratch_.refill(text_bytes);
  }

  // `walk` splits text at the tokens of `added`; `rest` gets what lies between, with its offset.
  template <class Rest>
  Status walk(const AddedTokens& added, const SpecialTokens& special, std::string_view text, Rest&& rest) {
    if (added.empty()) return rest(text, size_t{0});
    size_t done = 0, cursor = 0;
    while (const auto hit = added.next(text, done, cursor, special)) {
      if (hit->begin > done) OAR_RETURN_IF_ERROR(rest(text.substr(done, hit->begin - done), done));
      ids.push_back(hit->id);
      done = hit->end;
    }
    if (done < text.size()) return rest(text.substr(done), done);
    return ok_status();
  }

  Status run(std::string_view text) {
    return walk(parts_.raw_added, special_, text, [this](std::string_view section, size_t offset) {
      const bool at_start = offset == 0;
      std::vector<TextSpan> plain;
      if (!special_.plain.empty() && parts_.normalized_added.has_special())
        plain = clipped(special_.plain, offset, section.size());
      if (!parts_.normalizer) return normalized(section, plain, at_start);
      std::string out;
      out.reserve(section.size() + section.size() / 4 + 8);
      OAR_RETURN_IF_ERROR(parts_.normalizer->apply(section, out));
      if (out.size() > kMaxTextBytes) return resource_exhausted("the normalized text exceeds 2^30 bytes");
      OAR_RETURN_IF_ERROR(follow(*parts_.normalizer, section, out.size(), plain));
      return normalized(out, plain, at_start);
    });
  }

  const Status& watched() const { return model_scratch_.slices.status(); }

  std::vector<int32_t> ids;

 private:
  Status normalized(std::string_view text, const std::vector<TextSpan>& plain, bool at_start) {
    const SpecialTokens special{special_.parse, plain};
    const auto rest = [this, at_start](std::string_view section, size_t offset) {
      const Piece piece{section, at_start && offset == 0};
      const auto model = [this](Piece p) {
        if (model_scratch_.slices.spend(p.text.size())) parts_.model->encode(p.text, model_scratch_, ids);
        else pattern_scratch_.steps = 0;  // ends the search for pieces
      };
      if (parts_.pretokenizer) return parts_.pretokenizer->split(piece, pattern_scratch_, model);
      model(piece);
      return ok_status();
    };
    return walk(parts_.normalized_added, special, text, rest);
  }

  const TokenizerParts& parts_;
  const SpecialTokens special_;
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
  std::vector<TextSpan> moved;
  SpecialTokens special{options.parse_special, options.plain};
  if (!is_valid_utf8(text)) {
    moved.assign(options.plain.begin(), options.plain.end());
    repaired = repaired_text(text, parts_->repair_each_byte, moved);
    text = repaired;
    special.plain = moved;
  }
  Encoding e(*parts_, special, text.size(), options.watch);
  e.ids.reserve(text.size() / 4 + 8);
  if (options.add_special_tokens) e.ids = parts_->prefix;
  const Status ran = e.run(text);
  OAR_RETURN_IF_ERROR(e.watched());
  OAR_RETURN_IF_ERROR(ran);
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

size_t Tokenizer::max_token_bytes() const {
  const TokenizerParts& p = *parts_;
  size_t most = p.model->longest_token();
  if (most == 0 || p.normalizer || (p.pretokenizer && !p.pretokenizer->keeps_all())) return 0;
  for (const AddedToken& t : p.added) {
    if (t.lstrip || t.rstrip) return 0;  // swallows any amount of white space
    most = std::max(most, t.content.size());
  }
  return most;
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
