// Repairing and stripping a stream of token bytes.
#include "engine/text/decoder.h"

#include <algorithm>

#include "engine/text/utf8.h"

namespace oar {

Decoder Decoder::build(int32_t size, const std::function<Token(int32_t)>& describe, DecoderRules rules) {
  Decoder d;
  d.rules_ = rules;
  d.offsets_.reserve(static_cast<size_t>(size) * 2 + 1);
  d.flags_.reserve(static_cast<size_t>(size));
  d.offsets_.push_back(0);
  for (int32_t id = 0; id < size; ++id) {
    const Token t = describe(id);
    const bool same = t.first == t.bytes;
    d.arena_ += t.bytes;
    d.offsets_.push_back(d.arena_.size());
    if (!same) d.arena_ += t.first;
    d.offsets_.push_back(d.arena_.size());
    d.flags_.push_back(static_cast<uint8_t>((t.special ? kSpecial : 0) | (t.begins_space ? kBeginsSpace : 0) |
                                            (t.ends_word ? kEndsWord : 0) | (same ? kSameFirst : 0) |
                                            (t.known ? kKnown : 0)));
  }
  return d;
}

void DecodeStream::push(int32_t id, std::string& out) {
  if (id < 0 || id >= decoder_->size()) return;
  const uint8_t flags = decoder_->flags_[static_cast<size_t>(id)];
  if (!(flags & Decoder::kKnown)) return;
  if (skip_special_ && (flags & Decoder::kSpecial) &&
      std::find(keep_.begin(), keep_.end(), id) == keep_.end())
    return;
  if (owes_space_) append_bytes(" ", out);
  owes_space_ = decoder_->rules_.space_after_word_end && (flags & Decoder::kEndsWord);
  const std::string_view bytes = first_ ? decoder_->first_bytes(id) : decoder_->bytes(id);
  switch (decoder_->rules_.start) {
    case DecoderRules::Start::kFirstToken: first_ = false; break;
    case DecoderRules::Start::kUntilSpace:
      first_ = first_ && bytes.empty() && !(flags & Decoder::kBeginsSpace);
      break;
    case DecoderRules::Start::kUntilText: first_ = first_ && bytes.empty(); break;
  }
  append_bytes(bytes, out);
}

void DecodeStream::append_bytes(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_;
    joined += bytes;
    bytes = joined;
    pending_.clear();
  }
  std::string text;
  size_t good = 0;  // [good, i) is well-formed and not yet copied
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Probe p = probe_utf8(bytes, i);
    if (p.kind == Utf8Prefix::kComplete) {
      i += p.length;
      continue;
    }
    text += bytes.substr(good, i - good);
    if (p.kind == Utf8Prefix::kIncomplete) {
      pending_ = bytes.substr(i);
      good = bytes.size();
      break;
    }
    for (uint32_t n = decoder_->rules_.replace_each_byte ? p.length : 1; n > 0; --n)
      append_utf8(text, kReplacementCharacter);
    i += p.length;
    good = i;
  }
  text += bytes.substr(good);
  append_text(text, out);
}

void DecodeStream::append_text(std::string_view text, std::string& out) {
  const DecoderRules& rules = decoder_->rules_;
  while (strip_left_ > 0 && !text.empty()) {
    const CodePoint c = decode_utf8(text, 0);
    if (c.value != rules.strip) strip_left_ = 0;
    if (strip_left_ == 0) break;
    text.remove_prefix(c.length);
    --strip_left_;
  }
  if (rules.strip_right == 0 || text.empty()) {
    out += text;
    return;
  }
  // How many of the last characters, counting those held, may turn out to be the end of the text.
  size_t end = text.size(), trailing = 0;
  while (end > 0 && trailing < rules.strip_right) {
    const size_t p = previous_utf8(text, end);
    if (decode_utf8(text, p).value != rules.strip) break;
    end = p;
    ++trailing;
  }
  if (end == 0 && trailing + held_strip_ <= rules.strip_right) {
    held_strip_ += trailing;
    return;
  }
  const size_t keep = end == 0 ? trailing + held_strip_ - rules.strip_right : held_strip_;
  for (size_t i = 0; i < keep; ++i) append_utf8(out, rules.strip);
  out += text.substr(0, end);
  held_strip_ = end == 0 ? rules.strip_right : trailing;
}

void DecodeStream::finish(std::string& out) {
  if (!pending_.empty()) {
    std::string text;
    for (size_t n = decoder_->rules_.replace_each_byte ? pending_.size() : 1; n > 0; --n)
      append_utf8(text, kReplacementCharacter);
    pending_.clear();
    append_text(text, out);
  }
  held_strip_ = 0;
  owes_space_ = false;
}

void DecodeStream::drop_pending() {
  pending_.clear();
  held_strip_ = 0;
}

}  // namespace oar
