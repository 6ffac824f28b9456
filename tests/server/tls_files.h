// Makes keys and certificates for tests of TLS.
#pragma once

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace hadal::server::testing {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

inline Key make_key() {
  return {EVP_EC_gen("P-256"), &EVP_PKEY_free};
}

inline void write_key(EVP_PKEY* key, const std::string& path, const char* password = nullptr) {
  FILE* const file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  PEM_write_PrivateKey(file, key, password != nullptr ? EVP_aes_256_cbc() : nullptr,
                       reinterpret_cast<const unsigned char*>(password),
                       password != nullptr ? static_cast<int>(std::string(password).size()) : 0, nullptr,
                       nullptr);
  std::fclose(file);
}

inline void write_certificate(EVP_PKEY* key, const std::string& path) {
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), &X509_free);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"),
                             -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  X509_sign(certificate.get(), key, EVP_sha256());
  FILE* const file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  PEM_write_X509(file, certificate.get());
  std::fclose(file);
}

// TlsFiles is a folder with a key and its certificate.
class TlsFiles {
 public:
  TlsFiles() {
    std::string pattern = ::testing::TempDir() + "hadal-tls-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) return;
    directory_ = pattern;
    write_key(key_.get(), path("key.pem"));
    write_certificate(key_.get(), path("cert.pem"));
  }
  ~TlsFiles() { std::filesystem::remove_all(directory_); }
  TlsFiles(const TlsFiles&) = delete;
  TlsFiles& operator=(const TlsFiles&) = delete;

  EVP_PKEY* key() const { return key_.get(); }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }

 private:
  const Key key_ = make_key();
  std::string directory_;
};

}  // namespace hadal::server::testing
