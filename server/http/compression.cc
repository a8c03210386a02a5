#include "server/http/compression.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "engine/base/format.h"
#include "server/http/message.h"

namespace oar::http {
namespace {

constexpr size_t kStep = 64 << 10;  // by which a text grows
constexpr int kWindow = 15, kGzipWindow = 15 + 16;

int window_of(Coding coding) { return coding == Coding::kGzip ? kGzipWindow : kWindow; }

// zlib counts in unsigned ints and does not write to its input.
void give(z_stream& z, std::string_view& rest) {
  const size_t some = std::min<size_t>(rest.size(), std::numeric_limits<uInt>::max());
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest.data()));  // NOLINT: an old interface
  z.avail_in = static_cast<uInt>(some);
  rest.remove_prefix(some);
}

// From "gzip;q=0.5": the weight, 1 where there is none, 0 where it is no number.
double weight_of(std::string_view parameters) {
  const std::string_view text = trim(parameters);
  if (text.empty()) return 1;
  if (!text.starts_with("q=") && !text.starts_with("Q=")) return 0;
  double q = 0;
  const auto r = std::from_chars(text.data() + 2, text.data() + text.size(), q);
  return r.ec == std::errc() && r.ptr == text.data() + text.size() && q > 0 ? q : 0;
}

}  // namespace

std::optional<Coding> read_coding(std::string_view content_encoding) {
  const std::string_view name = trim(content_encoding);
  if (name.empty() || iequals(name, "identity")) return Coding::kIdentity;
  if (iequals(name, "gzip") || iequals(name, "x-gzip")) return Coding::kGzip;
  if (iequals(name, "deflate")) return Coding::kDeflate;
  return std::nullopt;
}

Coding accepted_coding(std::string_view accept_encoding) {
  Coding best = Coding::kIdentity;
  double most = 0;
  while (!accept_encoding.empty()) {
    const std::string_view one = accept_encoding.substr(0, accept_encoding.find(','));
    accept_encoding.remove_prefix(std::min(accept_encoding.size(), one.size() + 1));
    const size_t semicolon = std::min(one.find(';'), one.size());
    const std::optional<Coding> coding = read_coding(one.substr(0, semicolon));
    if (!coding || coding == Coding::kIdentity) continue;
    const double weight = weight_of(one.substr(std::min(one.size(), semicolon + 1)));
    if (weight > most || (weight == most && weight > 0 && coding == Coding::kGzip)) {
      most = weight;
      best = *coding;
    }
  }
  return best;
}

const char* coding_name(Coding coding) {
  switch (coding) {
    case Coding::kGzip: return "gzip";
    case Coding::kDeflate: return "deflate";
    case Coding::kIdentity: break;
  }
  return "identity";
}

Result<std::string> decompress(std::string_view bytes, Coding coding, size_t max_bytes) {
  if (coding == Coding::kIdentity) return std::string(bytes);
  z_stream z{};
  if (inflateInit2(&z, window_of(coding)) != Z_OK) return internal_error("zlib has no memory");
  std::string out;
  std::string_view rest = bytes;
  int result = Z_OK;
  Status fault;
  while (result != Z_STREAM_END && fault.ok()) {
    if (z.avail_in == 0) give(z, rest);
    const size_t had = out.size();
    // One byte more than is allowed tells a text that is too long from one that just fits.
    const size_t room = std::min(kStep, max_bytes + 1 - had);
    out.resize(had + room);
    z.next_out = reinterpret_cast<Bytef*>(out.data() + had);
    z.avail_out = static_cast<uInt>(room);
    result = inflate(&z, Z_NO_FLUSH);
    out.resize(had + room - z.avail_out);
    const bool stuck = result == Z_BUF_ERROR || (result == Z_OK && out.size() == had && rest.empty());
    if (out.size() > max_bytes)
      fault = Status(StatusCode::kOutOfRange, cat("has more than ", max_bytes, " bytes when unpacked"));
    else if (stuck || (result != Z_OK && result != Z_STREAM_END))
      fault = invalid_argument(cat("is not valid ", coding_name(coding), stuck ? ": it is cut short" : ""));
  }
  if (fault.ok() && (z.avail_in > 0 || !rest.empty()))
    fault = invalid_argument(cat("goes on behind the end of its ", coding_name(coding)));
  inflateEnd(&z);
  if (!fault.ok()) return fault;
  return out;
}

std::string compress(std::string_view bytes, Coding coding) {
  z_stream z{};
  if (coding == Coding::kIdentity ||
      deflateInit2(&z, Z_BEST_SPEED, Z_DEFLATED, window_of(coding), 8, Z_DEFAULT_STRATEGY) != Z_OK)
    return std::string(bytes);
  std::string out(deflateBound(&z, bytes.size()), '\0');
  std::string_view rest = bytes;
  size_t filled = 0;
  int result = Z_OK;
  while (result == Z_OK) {
    if (z.avail_in == 0) give(z, rest);
    if (filled == out.size()) out.resize(out.size() + kStep);
    const size_t room = std::min<size_t>(out.size() - filled, std::numeric_limits<uInt>::max());
    z.next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    z.avail_out = static_cast<uInt>(room);
    result = deflate(&z, rest.empty() ? Z_FINISH : Z_NO_FLUSH);
    filled += room - z.avail_out;
  }
  deflateEnd(&z);
  out.resize(filled);
  return out;
}

}  // namespace oar::http
