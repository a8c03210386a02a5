// Reasoning under a budget, and a constrained answer behind it: what masks allow, what is forced, and that
// cursors can go back to every place they came through.
#include "engine/text/tools/reply_constraint.h"

#include "tests/support/catch.h"

namespace {

using oar::ConstraintCursor;
namespace json = oar::json;

// The letters a to z are tokens 0 to 25, <think> is 26 and </think> 27: one token each, or spelled in
// letters.
oar::TokenizerPtr letters(bool tokens) {
  json::object vocab;
  for (int i = 0; i < 26; ++i) vocab[std::string(1, static_cast<char>('a' + i))] = i;
  int next = 26;
  json::array added;
  if (tokens) {
    for (const char* text : {"<think>", "</think>"})
      added.push_back(json::object{{"id", next++},
                                   {"content", text},
                                   {"single_word", false},
                                   {"lstrip", false},
                                   {"rstrip", false},
                                   {"normalized", false},
                                   {"special", true}});
  } else {
    for (const char* text : {"<", ">", "/"}) vocab[text] = next++;
  }
  const json::object file{
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder", json::object{{"type", "Fuse"}}},
      {"model", json::object{{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array{}}}}};
  auto made = oar::tokenizer_from_json(json::serialize(file));
  REQUIRE_OK(made);
  return *made;
}

// Exactly the letters x y, then the end.
class XyCursor final : public ConstraintCursor {
 public:
  bool advance(int32_t token) override {
    if (at_ >= 2 || token != 23 + at_) return false;
    ++at_;
    return true;
  }
  void rollback(int64_t count) override {
    REQUIRE(count <= at_);
    at_ -= static_cast<int>(count);
  }
  void mask(std::span<uint32_t> bits) override { bits[0] = at_ < 2 ? uint32_t{1} << (23 + at_) : 0; }
  int32_t only() override { return at_ < 2 ? 23 + at_ : -1; }
  bool may_end() const override { return at_ == 2; }
  bool must_end() const override { return at_ == 2; }
  std::unique_ptr<ConstraintCursor> fork() const override { return std::make_unique<XyCursor>(*this); }

 private:
  int at_ = 0;
};
class Xy final : public oar::Constraint {
 public:
  std::unique_ptr<ConstraintCursor> start() const override { return std::make_unique<XyCursor>(); }
};

oar::ReplyFormat thinking(bool in_reasoning) {
  oar::ReplyFormat f;
  f.reasoning = *oar::tools::find_reasoning_style("think", {});
  f.in_reasoning = in_reasoning;
  return f;
}

uint32_t mask(ConstraintCursor& c) {
  uint32_t bits = 0;
  c.mask({&bits, 1});
  return bits;
}
constexpr uint32_t kAll = ~0u, kThink = 1u << 26, kClose = 1u << 27, kX = 1u << 23, kY = 1u << 24;

TEST_CASE("a budget of reasoning: its closing marker is forced, then everything is free") {
  const auto format = thinking(true);
  const auto constraint = oar::make_reply_constraint(&format, letters(true), 2, nullptr);
  REQUIRE(constraint != nullptr);
  const auto c = constraint->start();
  CHECK(mask(*c) == kAll);
  CHECK(c->may_end());
  REQUIRE(c->advance(0));
  CHECK(mask(*c) == kAll);
  REQUIRE(c->advance(1));
  CHECK(mask(*c) == kClose);
  CHECK(c->only() == 27);
  CHECK_FALSE(c->may_end());
  CHECK_FALSE(c->advance(2));
  const auto other = c->fork();
  REQUIRE(c->advance(27));
  CHECK(mask(*c) == kAll);
  for (int i = 0; i < 5; ++i) REQUIRE(c->advance(3));
  CHECK(c->only() == -1);
  CHECK(mask(*other) == kClose);
  c->rollback(6);
  CHECK(mask(*c) == kClose);
  c->rollback(1);
  CHECK(mask(*c) == kAll);
  c->rollback(1);
  REQUIRE(c->advance(27));  // closed by itself, within the budget
  for (int i = 0; i < 5; ++i) REQUIRE(c->advance(3));
  CHECK(mask(*c) == kAll);
}

TEST_CASE("a budget of none closes at once; one that is not begun costs nothing") {
  const auto begun = thinking(true), open = thinking(false);
  CHECK(mask(*oar::make_reply_constraint(&begun, letters(true), 0, nullptr)->start()) == kClose);
  const auto c = oar::make_reply_constraint(&open, letters(true), 1, nullptr)->start();
  CHECK(mask(*c) == kAll);
  const auto answers = c->fork();
  REQUIRE(answers->advance(5));  // an answer without reasoning
  for (int i = 0; i < 3; ++i) REQUIRE(answers->advance(5));
  CHECK(mask(*answers) == kAll);
  REQUIRE(c->advance(26));
  REQUIRE(c->advance(5));
  CHECK(mask(*c) == kClose);
}

TEST_CASE("markers that are several tokens") {
  const auto tokenizer = letters(false);
  const auto format = thinking(false);
  const auto c = oar::make_reply_constraint(&format, tokenizer, 3, nullptr)->start();
  const auto open = tokenizer->encode("<think>", {.add_special_tokens = false});
  for (const int32_t id : *open) REQUIRE(c->advance(id));
  for (int i = 0; i < 3; ++i) REQUIRE(c->advance(0));
  const auto close = tokenizer->encode("</think>", {.add_special_tokens = false});
  REQUIRE(close->size() == 8);
  for (const int32_t id : *close) {
    CHECK(c->only() == id);
    REQUIRE(c->advance(id));
  }
  CHECK(mask(*c) == kAll);
}

TEST_CASE("a constrained answer begins behind the reasoning, if there is any") {
  const auto open = thinking(false), begun = thinking(true);
  const auto xy = std::make_shared<Xy>();
  const auto c = oar::make_reply_constraint(&open, letters(true), {}, xy)->start();
  CHECK(mask(*c) == (kX | kThink));
  CHECK_FALSE(c->may_end());
  CHECK_FALSE(c->advance(0));
  CHECK(mask(*c) == (kX | kThink));
  const auto direct = c->fork();
  REQUIRE(direct->advance(23));
  CHECK(mask(*direct) == kY);
  direct->rollback(1);
  CHECK(mask(*direct) == (kX | kThink));
  REQUIRE(c->advance(26));
  CHECK(mask(*c) == kAll);
  CHECK_FALSE(c->may_end());
  REQUIRE(c->advance(0));
  REQUIRE(c->advance(27));
  CHECK(mask(*c) == kX);
  CHECK(c->only() == 23);
  REQUIRE(c->advance(23));
  REQUIRE(c->advance(24));
  CHECK(c->must_end());
  c->rollback(4);
  CHECK(mask(*c) == kAll);
  REQUIRE(c->advance(27));
  CHECK(mask(*c) == kX);
  CHECK(mask(*oar::make_reply_constraint(&begun, letters(true), {}, xy)->start()) == kAll);
  // Nothing to look after.
  oar::ReplyFormat plain;
  CHECK(oar::make_reply_constraint(&plain, letters(true), {}, xy) == xy);
  CHECK(oar::make_reply_constraint(&open, letters(true), {}, nullptr) == nullptr);
}

}  // namespace
