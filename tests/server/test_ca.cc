#include "tests/server/test_ca.h"

#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace oar_test {
namespace {

void must(bool ok) {
  if (!ok) throw std::runtime_error("OpenSSL refused to make a certificate");
}

std::shared_ptr<EVP_PKEY> new_key() {
  std::shared_ptr<EVP_PKEY> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  must(key != nullptr);
  return key;
}

void extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* e = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  must(e != nullptr && X509_add_ext(certificate, e, -1) == 1);
  X509_EXTENSION_free(e);
}

std::shared_ptr<X509> new_certificate(EVP_PKEY* key, const std::string& common_name, int days) {
  std::shared_ptr<X509> c(X509_new(), X509_free);
  must(c != nullptr && X509_set_version(c.get(), 2) == 1);
  int64_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), 7);
  ASN1_INTEGER_set_int64(X509_get_serialNumber(c.get()), serial & 0x7fffffffffffff);
  X509_gmtime_adj(X509_getm_notBefore(c.get()), -86400L * 10);
  X509_gmtime_adj(X509_getm_notAfter(c.get()), 86400L * days);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(c.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1, 0);
  must(X509_set_pubkey(c.get(), key) == 1);
  return c;
}

template <class F>
std::string pem(F&& write) {
  std::shared_ptr<BIO> memory(BIO_new(BIO_s_mem()), BIO_free);
  must(memory != nullptr && write(memory.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return {data, static_cast<size_t>(size)};
}

}  // namespace

TestCa::TestCa(const std::string& name)
    : key_(new_key()), certificate_(new_certificate(key_.get(), name, 10)) {
  must(X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get())) == 1);
  extend(certificate_.get(), certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  extend(certificate_.get(), certificate_.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  extend(certificate_.get(), certificate_.get(), NID_subject_key_identifier, "hash");
  must(X509_sign(certificate_.get(), key_.get(), EVP_sha256()) > 0);
}

std::string TestCa::certificate() const {
  return pem([&](BIO* b) { return PEM_write_bio_X509(b, certificate_.get()); });
}

Identity TestCa::issue(const std::string& common_name, const std::string& host, int days) const {
  const auto key = new_key();
  const auto c = new_certificate(key.get(), common_name, days);
  must(X509_set_issuer_name(c.get(), X509_get_subject_name(certificate_.get())) == 1);
  extend(c.get(), certificate_.get(), NID_subject_alt_name,
         "DNS:" + host + (host == "localhost" ? ",IP:127.0.0.1" : ""));
  extend(c.get(), certificate_.get(), NID_authority_key_identifier, "keyid");
  must(X509_sign(c.get(), key_.get(), EVP_sha256()) > 0);
  return {pem([&](BIO* b) { return PEM_write_bio_X509(b, c.get()); }), pem([&](BIO* b) {
            return PEM_write_bio_PrivateKey(b, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new", std::ios::binary) << text;
  std::filesystem::rename(path + ".new", path);
}

}  // namespace oar_test
