#include "serve/http/tls_context.h"

#include <openssl/ssl.h>

namespace tidemill {

namespace ssl = boost::asio::ssl;

Result<ssl::context> make_tls_context(const std::filesystem::path& certificate,
                                      const std::filesystem::path& key) {
  if (certificate.empty() || key.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "TLS needs a certificate and its key: the {} is not given",
                certificate.empty() ? "certificate" : "key");
  }
  ssl::context context(ssl::context::tls_server);
  SSL_CTX* native = context.native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // A connection that waits gives OpenSSL's buffers back.
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);
  boost::system::error_code error;
  // OpenSSL would ask for it on the terminal.
  context.set_password_callback([](size_t, ssl::context::password_purpose) { return ""; }, error);
  context.use_certificate_chain_file(certificate.string(), error);
  if (error) {
    return fail(ErrorCode::kInvalidArgument, "cannot use {} as TLS certificate (a PEM chain): {}",
                certificate.string(), error.message());
  }
  context.use_private_key_file(key.string(), ssl::context::pem, error);
  if (error) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot use {} as key of the TLS certificate {} (PEM, without a password): {}",
                key.string(), certificate.string(), error.message());
  }
  return context;
}

}  // namespace tidemill
