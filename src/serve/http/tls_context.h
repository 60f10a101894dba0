// The server's certificate and key.
#pragma once

#include <filesystem>

#include <boost/asio/ssl/context.hpp>

#include "base/result.h"

namespace tidemill {

// TLS 1.2 and 1.3. Errors name the file: kInvalidArgument.
Result<boost::asio::ssl::context> make_tls_context(const std::filesystem::path& certificate,
                                                   const std::filesystem::path& key);

}  // namespace tidemill
