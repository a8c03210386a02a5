#include "server/ui/page.h"

#include <openssl/evp.h>

#include <array>
#include <string_view>

#include "engine/base/format.h"
#include "engine/base/status.h"
#include "oar_page.inc"  // kIndexPage, kDocsPage

namespace oar::ui {
namespace {

// What lies between <tag> and </tag>, which occur once each.
std::string_view between(std::string_view html, const char* tag) {
  const std::string open = cat("<", tag, ">"), close = cat("</", tag, ">");
  const size_t begin = html.find(open);
  const size_t end = html.find(close);
  OAR_CHECK(begin != std::string_view::npos && end != std::string_view::npos && begin < end &&
                html.find(open, begin + 1) == std::string_view::npos,
            "a page has one element of each kind");
  return html.substr(begin + open.size(), end - begin - open.size());
}

// As Content Security Policy level 2 writes a hash: 'sha256-<base64>'.
std::string hash_source(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  OAR_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1,
            "SHA-256 is part of OpenSSL");
  std::array<unsigned char, EVP_MAX_MD_SIZE * 2> base64;
  const int length = EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(size));
  return cat("'sha256-",
             std::string_view(reinterpret_cast<const char*>(base64.data()), static_cast<size_t>(length)),
             "'");
}

Page page_of(std::string_view html) {
  return {std::string(html), cat("default-src 'none'; script-src ", hash_source(between(html, "script")),
                                 "; style-src ", hash_source(between(html, "style")),
                                 "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                                 "frame-ancestors 'none'; ",
                                 "require-trusted-types-for 'script'")};
}

}  // namespace

Page status_page() { return page_of(kIndexPage); }
Page docs_page() { return page_of(kDocsPage); }

}  // namespace oar::ui
