// HTTPS, with a certificate made here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <fstream>

#include "base/temp_directory.h"
#include "serve/http/http_for_tests.h"
#include "serve/http/http_server.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;

Key write_key(const std::filesystem::path& path, const char* password = nullptr) {
  Key key(EVP_EC_gen("P-256"));
  std::FILE* file = std::fopen(path.c_str(), "w");
  PEM_write_PrivateKey(file, key.get(), password ? EVP_aes_128_cbc() : nullptr, nullptr, 0, nullptr,
                       const_cast<char*>(password));
  std::fclose(file);
  return key;
}

void write_certificate(const std::filesystem::path& path, EVP_PKEY* key) {
  const Certificate certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  X509_sign(certificate.get(), key, EVP_sha256());
  std::FILE* file = std::fopen(path.c_str(), "w");
  PEM_write_X509(file, certificate.get());
  std::fclose(file);
}

// Blocking, over a TestClient's socket.
class TlsClient {
 public:
  explicit TlsClient(uint16_t port, const std::filesystem::path& trusted,
                     int version = TLS1_3_VERSION)
      : tcp(port), context_(SSL_CTX_new(TLS_client_method())), ssl_(nullptr) {
    const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
    setsockopt(tcp.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    SSL_CTX_set_security_level(context_.get(), 0);  // also old versions may be tried
    SSL_CTX_set_min_proto_version(context_.get(), version);
    SSL_CTX_set_max_proto_version(context_.get(), version);
    SSL_CTX_load_verify_locations(context_.get(), trusted.c_str(), nullptr);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), tcp.fd());
  }

  bool connect() { return SSL_connect(ssl_.get()) == 1; }
  bool send(std::string_view bytes) {
    return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
  }
  bool receive() {
    char bytes[16384];
    const int size = SSL_read(ssl_.get(), bytes, sizeof bytes);
    if (size > 0) received.append(bytes, static_cast<size_t>(size));
    ended_well = size <= 0 && SSL_get_error(ssl_.get(), size) == SSL_ERROR_ZERO_RETURN;
    return size > 0;
  }
  bool receive_until(std::string_view text) {
    while (received.find(text) == std::string::npos) {
      if (!receive()) return false;
    }
    return true;
  }
  void say_goodbye() { SSL_shutdown(ssl_.get()); }

  TestClient tcp;
  std::string received;
  bool ended_well = false;  // by a message, not by the end of the connection

 private:
  std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context_;
  std::unique_ptr<SSL, Freed<SSL_free>> ssl_;
};

class HttpTls : public testing::Test, public TestServer {
 protected:
  HttpTls() {
    options.tls_certificate = directory_.path() / "certificate.pem";
    options.tls_key = directory_.path() / "key.pem";
    write_certificate(options.tls_certificate, write_key(options.tls_key).get());
  }
  std::string start_error() {
    auto started = HttpServer::start(options, [](HttpThread&) { return nullptr; });
    return started ? "" : started.error().message;
  }
  TempDirectory directory_;
};

TEST_F(HttpTls, RoundTrips) {
  start();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(port(), options.tls_certificate, version);
    ASSERT_TRUE(client.connect());
    for (int i = 0; i < 3; ++i) {
      client.received.clear();
      const std::string body(100'000, static_cast<char>('a' + i));
      ASSERT_TRUE(client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"));
      for (size_t sent = 0; sent < body.size(); sent += 10'000) {
        ASSERT_TRUE(client.send(std::string_view(body).substr(sent, 10'000)));
      }
      ASSERT_TRUE(client.receive_until("POST /echo? " + body));
    }
    client.say_goodbye();
  }
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpTls, PipelinedInOneRecordAndInMany) {
  start();
  TlsClient client(port(), options.tls_certificate);
  ASSERT_TRUE(client.connect());
  std::string requests;
  for (int i = 0; i < 20; ++i) {
    requests += "GET /echo?" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\n\r\n";
  }
  ASSERT_TRUE(client.send(requests));
  EXPECT_TRUE(client.receive_until("GET /echo?19 "));
  ASSERT_TRUE(client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"));
  for (int i = 20; i < 40; ++i) {
    ASSERT_TRUE(client.send("GET /echo?" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\n\r\n"));
  }
  ASSERT_TRUE(eventually([this] { return kept == 1; }));
  on_thread([](TestHandler& handler) { handler.held.back()->send({.body = "held"}); });
  EXPECT_TRUE(client.receive_until("GET /echo?39 "));
  EXPECT_LT(client.received.find("held"), client.received.find("GET /echo?20 "));
}

TEST_F(HttpTls, Streams) {
  start();
  TlsClient client(port(), options.tls_certificate);
  ASSERT_TRUE(client.connect());
  client.send("GET /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  ASSERT_TRUE(client.receive_until("first"));
  for (int i = 0; i < 100; ++i) {
    on_thread([&](TestHandler& handler) {
      handler.held.back()->write("event " + std::to_string(i) + "\n");
    });
    ASSERT_TRUE(client.receive_until("event " + std::to_string(i) + "\n"));
  }
  on_thread([](TestHandler& handler) { handler.held.back()->end(); });
  while (client.receive()) {
  }
  EXPECT_TRUE(client.received.ends_with("0\r\n\r\n"));
  EXPECT_TRUE(client.ended_well);
  client.tcp.close();
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpTls, GoneClientsAreSeen) {
  start();
  for (int way = 0; way < 3; ++way) {
    TlsClient client(port(), options.tls_certificate);
    ASSERT_TRUE(client.connect());
    client.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    ASSERT_TRUE(client.receive_until("first"));
    if (way == 0) client.say_goodbye();
    if (way == 1) client.tcp.reset();
    if (way == 2) client.tcp.close();
    EXPECT_TRUE(eventually([&] { return closes(HttpClose::kClientGone) == way + 1; })) << way;
  }
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpTls, ASlowReaderIsClosed) {
  options.limits.buffer = 100'000;
  start();
  TlsClient client(port(), options.tls_certificate);
  ASSERT_TRUE(client.connect());
  client.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(eventually([this] { return kept == 1; }));
  for (int i = 0; i < 5000 && closes(HttpClose::kSlowReader) == 0; ++i) {
    on_thread([](TestHandler& handler) { handler.held.back()->write(std::string(10'000, 'e')); });
  }
  EXPECT_EQ(closes(HttpClose::kSlowReader), 1);
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpTls, OtherClientsAreClosed) {
  options.limits.header_timeout = std::chrono::milliseconds(300);
  start();
  TestClient plain(port());
  plain.get("/echo");
  plain.is_closed();
  EXPECT_THAT(plain.received(), testing::Not(HasSubstr("HTTP/1.1")));
  TestClient silent(port());
  EXPECT_EQ(silent.receive_all(), "");
  TlsClient old(port(), options.tls_certificate, TLS1_1_VERSION);
  EXPECT_FALSE(old.connect());
  TlsClient garbage(port(), options.tls_certificate);
  ASSERT_TRUE(garbage.connect());
  garbage.tcp.send(std::string(1000, 'x'));
  garbage.tcp.is_closed();
  old.tcp.close();
  garbage.tcp.close();
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpTls, StopsWithStreamsAndHandshakes) {
  start();
  TlsClient stream(port(), options.tls_certificate), idle(port(), options.tls_certificate);
  TestClient silent(port());
  ASSERT_TRUE(stream.connect());
  ASSERT_TRUE(idle.connect());
  stream.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(stream.receive_until("first"));
  EXPECT_EQ(server->stop(Deadline::after(std::chrono::milliseconds(50))), 1);
  EXPECT_TRUE(eventually([this] { return closes(HttpClose::kShutdown) == 1; }));
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpTls, ErrorsNameTheFile) {
  const auto certificate = options.tls_certificate;
  const auto key = options.tls_key;
  options.tls_certificate = directory_.path() / "missing.pem";
  EXPECT_THAT(start_error(), HasSubstr("missing.pem"));
  options.tls_certificate = key;  // a PEM file, but not one of a certificate
  EXPECT_THAT(start_error(), HasSubstr("key.pem"));
  options.tls_certificate = certificate;
  options.tls_key = directory_.path() / "other.pem";
  write_key(options.tls_key);
  EXPECT_THAT(start_error(), HasSubstr("other.pem"));
  options.tls_key = directory_.path() / "secret.pem";
  write_key(options.tls_key, "password");
  EXPECT_THAT(start_error(), HasSubstr("secret.pem"));
  std::ofstream(directory_.path() / "empty.pem").close();
  options.tls_key = directory_.path() / "empty.pem";
  EXPECT_THAT(start_error(), HasSubstr("empty.pem"));
  options.tls_key.clear();
  EXPECT_THAT(start_error(), HasSubstr("the key is not given"));
  options.tls_key = key;
  options.tls_certificate.clear();
  EXPECT_THAT(start_error(), HasSubstr("the certificate is not given"));
}

}  // namespace
}  // namespace tidemill
