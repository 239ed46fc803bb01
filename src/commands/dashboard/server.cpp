#include "commands/dashboard/server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <iostream>
#include <optional>
#include <thread>

#include "commands/dashboard/access.h"
#include "commands/dashboard/page.h"
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"

namespace hrm::dashboard {
namespace {

// Not application/json: the library would compress that at its slowest setting, for a reader on the same machine.
constexpr const char* kJsonType = "application/vnd.hrm+json";
constexpr const char* kScriptType = "application/x-javascript";
constexpr const char* kTextType = "text/plain; charset=utf-8";
constexpr std::chrono::milliseconds kReadBudget{400};
constexpr size_t kMaxKeysAsked = 512;

struct BadRequest {
  std::string sentence;
};

template <class Number>
Number number_of(const std::string& text, const char* name) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size())
    throw BadRequest{cat("'", name, "' is no whole number")};
  return number;
}

MetricsRequest metrics_request(const httplib::Request& request) {
  MetricsRequest out;
  const auto read = [&](const char* name, auto& number) {
    if (!request.has_param(name)) return;
    number = number_of<std::remove_reference_t<decltype(number)>>(request.get_param_value(name), name);
  };
  read("from", out.from);
  read("to", out.to);
  read("columns", out.columns);
  read("generation", out.generation);
  out.have = request.get_param_value("have");
  for (const std::string& key : split_list(request.get_param_value("keys"))) {
    if (out.keys.size() == kMaxKeysAsked) throw BadRequest{cat("'keys' has more than ", kMaxKeysAsked, " numbers")};
    out.keys.push_back(number_of<uint32_t>(key, "keys"));
  }
  return out;
}

void say(httplib::Response& response, int status, const std::string& sentence) {
  response.status = status;
  response.set_content(sentence + "\n", kTextType);
}

void answer(httplib::Response& response, const std::optional<std::string>& json) {
  if (!json) {
    say(response, 404, "no such run");
  } else if (json->empty()) {
    response.status = 204;
  } else {
    response.set_content(*json, kJsonType);
  }
}

// A failure while answering is a sentence, too.
template <class Work>
httplib::Server::Handler guarded(Work work) {
  return [work](const httplib::Request& request, httplib::Response& response) {
    try {
      work(request, response);
    } catch (const BadRequest& bad) {
      say(response, 400, bad.sentence);
    } catch (const std::exception& error) {
      say(response, 500, printable(error.what()));
    }
  };
}

void add_headers(httplib::Response& response) {
  response.set_header("Content-Security-Policy", kContentPolicy);
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("X-Frame-Options", "DENY");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("Cross-Origin-Resource-Policy", "same-origin");
  response.set_header("Cache-Control", "no-store");
}

bool is_static_file(const std::string& path) {
  return path == "/style.css" || path == "/page.js";
}

void add_routes(httplib::Server& server, Runs& runs, const Access& access) {
  server.set_pre_routing_handler([&access](const httplib::Request& request, httplib::Response& response) {
    add_headers(response);
    using Step = httplib::Server::HandlerResponse;
    if (request.get_header_value_count("Host") != 1 || !access.allows_host(request.get_header_value("Host"))) {
      say(response, 403, "this host name is not one of this server; use the address that hrm_train dashboard printed");
      return Step::Handled;
    }
    if (request.method != "GET" && request.method != "HEAD") {
      say(response, 405, "only GET and HEAD are answered");
      return Step::Handled;
    }
    // The files of the page hold nothing of the runs.
    const std::string token =
        request.has_header("X-Token") ? request.get_header_value("X-Token") : request.get_param_value("token");
    if (!is_static_file(request.path) && !access.allows_token(token)) {
      say(response, 401, "the token is missing or wrong; use the address that hrm_train dashboard printed");
      return Step::Handled;
    }
    return Step::Unhandled;
  });
  server.Get("/", guarded([](const auto&, auto& response) {
               static const std::string page = served_page();
               response.set_content(page, "text/html; charset=utf-8");
             }));
  server.Get("/style.css",
             guarded([](const auto&, auto& response) { response.set_content(style_file(), "text/css"); }));
  server.Get("/page.js",
             guarded([](const auto&, auto& response) { response.set_content(script_file(), kScriptType); }));
  server.Get("/api/runs", guarded([&runs](const auto&, auto& response) { answer(response, runs.list()); }));
  server.Get("/api/metrics", guarded([&runs](const auto& request, auto& response) {
               answer(response, runs.metrics(request.get_param_value("run"), metrics_request(request), kReadBudget));
             }));
  server.Get("/api/details", guarded([&runs](const auto& request, auto& response) {
               answer(response, runs.details(request.get_param_value("run")));
             }));
  server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (response.body.empty()) response.set_content(cat("status ", response.status, "\n"), kTextType);
  });
}

// Stops the server at a signal. Signals must be blocked in all threads before.
class StopAtSignal {
 public:
  StopAtSignal(httplib::Server& server, const sigset_t& signals)
      : thread_([&server, signals, this] {
          const timespec wait{.tv_sec = 0, .tv_nsec = 200'000'000};
          while (!done_) {
            if (sigtimedwait(&signals, nullptr, &wait) > 0) {
              server.stop();
              return;
            }
          }
        }) {}
  ~StopAtSignal() {
    done_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

std::string url_host(const std::string& address) {
  return address.find(':') == address.npos ? address : "[" + address + "]";
}

}  // namespace

void serve(Runs& runs, const ServerOptions& options) {
  in6_addr parsed{};
  require(options.address == "localhost" || inet_pton(AF_INET, options.address.c_str(), &parsed) == 1 ||
              inet_pton(AF_INET6, options.address.c_str(), &parsed) == 1,
          ExitCode::usage, "--listen is '", printable_start(options.address),
          "'; give an IP address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them");
  const std::string token = is_loopback(options.address) ? "" : new_token();
  const Access access(options.address, token);
  httplib::Server server;
  // The library's own options would let two servers share a port.
  server.set_socket_options([](auto socket) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  // Browsers keep up to six connections open, and each has a thread.
  server.new_task_queue = [] { return new httplib::ThreadPool(24); };
  server.set_keep_alive_timeout(5);
  server.set_read_timeout(5, 0);
  server.set_write_timeout(10, 0);
  server.set_payload_max_length(1024);
  server.set_tcp_nodelay(true);
  add_routes(server, runs, access);

  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  const int port = options.port == 0 ? server.bind_to_any_port(options.address.c_str())
                   : server.bind_to_port(options.address.c_str(), options.port) ? options.port
                                                                                : -1;
  const int reason = errno;
  require(port > 0, ExitCode::environment, "cannot listen on ", options.address, " port ", options.port, ": ",
          std::strerror(reason), "; choose another port with --port, or 0 for any free one");
  std::cout << "http://" << url_host(options.address) << ":" << port << "/" << (token.empty() ? "" : "?token=") << token
            << std::endl;
  {
    const StopAtSignal stop(server, signals);
    log::info("serving the runs; Ctrl-C ends it");
    server.listen_after_bind();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace hrm::dashboard
