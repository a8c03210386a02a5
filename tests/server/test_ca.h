// A certificate authority of the test's own, and certificates from it, made by OpenSSL when the test runs.
#pragma once

#include <memory>
#include <string>

struct evp_pkey_st;
struct x509_st;

namespace oar_test {

struct Identity {
  std::string certificate, key;  // PEM
};

class TestCa {
 public:
  explicit TestCa(const std::string& name);
  std::string certificate() const;  // PEM
  // For localhost and 127.0.0.1 unless another host is named. `days` may be negative: expired.
  Identity issue(const std::string& common_name, const std::string& host = "localhost", int days = 2) const;

 private:
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
};

// Replaces the file in one step, as a mounted secret is replaced.
void write_file(const std::string& path, const std::string& text);

}  // namespace oar_test
