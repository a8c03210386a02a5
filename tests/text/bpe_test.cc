// Byte pair encoding by scores: which pieces merge.
#include "engine/text/bpe.h"

#include "tests/support/catch.h"

using namespace oar;

TEST_CASE("bpe by scores: a piece merges though a token of another type has its text before it") {
  using Type = ScoredPiece::Type;
  // c is no piece, and begins no text here but ends one. Of the two normal "ab" the first counts.
  const std::string texts[] = {"<unk>", "ab", "a", "b", "ab", "abc", "ab"};
  const Vocabulary vocabulary = Vocabulary::build(texts);
  std::vector<ScoredPiece> pieces = {{0, Type::kOther}, {0, Type::kOther}, {-3}, {-4}, {-1}, {-2}, {-1}};
  auto model = BpeModel::from_scores(vocabulary, pieces, 0, false);
  REQUIRE_OK(model);
  const auto encode = [&](std::string_view text) {
    ModelScratch scratch;
    std::vector<int32_t> ids;
    (*model)->encode(text, scratch, ids);
    return ids;
  };
  CHECK(encode("ab") == std::vector<int32_t>{4});
  CHECK(encode("abc") == std::vector<int32_t>{5});
  CHECK(encode("ba") == std::vector<int32_t>{3, 2});
  CHECK(encode("ac") == std::vector<int32_t>{2, 0});  // c takes part in merging and is no token
  CHECK(encode("d") == std::vector<int32_t>{0});
}
