// hrm_train dashboard as a browser and an attacker meet it: by sockets.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using test::Result;
using test::run;
using test::TempDir;

// Ended, and waited for, by the destructor.
class Served {
 public:
  explicit Served(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {test::train_binary(), "dashboard"});
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    child_ = fork();
    if (child_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
      std::vector<char*> words;
      for (std::string& argument : arguments) words.push_back(argument.data());
      words.push_back(nullptr);
      execv(words[0], words.data());
      _exit(127);
    }
    close(ends[1]);
    for (char c = 0; ::read(ends[0], &c, 1) == 1 && c != '\n';) url += c;
    close(ends[0]);
    const size_t colon = url.rfind(':');
    port = colon == url.npos ? 0 : std::atoi(url.c_str() + colon + 1);
  }
  ~Served() {
    if (child_ > 0) stop();
  }

  int stop() {
    kill(child_, SIGTERM);
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // The whole answer to these bytes, until the server closes. `end`: says that nothing more follows, which the library
  // takes for a browser that has gone.
  std::string ask(const std::string& bytes, bool end = false) const {
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    if (end) shutdown(connection, SHUT_WR);
    std::string answer;
    char part[4096];
    for (ssize_t got; (got = recv(connection, part, sizeof part, 0)) > 0;)
      answer.append(part, static_cast<size_t>(got));
    close(connection);
    return answer;
  }
  std::string get(const std::string& path, const std::string& headers = "Host: localhost\r\n") const {
    return ask("GET " + path + " HTTP/1.1\r\n" + headers + "Connection: close\r\n\r\n");
  }
  // 0: the connection was closed without an answer.
  static int status(const std::string& answer) { return answer.size() < 12 ? 0 : std::atoi(answer.c_str() + 9); }
  static std::string body(const std::string& answer) {
    const size_t end = answer.find("\r\n\r\n");
    return end == answer.npos ? "" : answer.substr(end + 4);
  }

  std::string url;
  int port = 0;

 private:
  pid_t child_ = -1;
};

class Dashboard : public testing::Test {
 protected:
  Dashboard() : runs_(dir_ / "runs") {
    fs::create_directories(runs_ / "first/log");
    std::ofstream(runs_ / "first/metrics.jsonl")
        << "{\"step\":1,\"train/loss\":2.5}\n{\"step\":2,\"train/loss\":1.5}\n";
    std::ofstream(runs_ / "first/log/rank_0.log") << "step 2\n";
    std::ofstream(dir_ / "secret.txt") << "do not show";
    fs::create_symlink(dir_ / "secret.txt", runs_ / "first/config.json");
  }

  TempDir dir_;
  fs::path runs_;
};

TEST_F(Dashboard, ShowsRunsThatGrow) {
  Served served({runs_.string(), "--port", "0"});
  ASSERT_GT(served.port, 0) << served.url;
  const std::string page = served.get("/");
  EXPECT_EQ(Served::status(page), 200);
  for (const char* part : {"Content-Security-Policy: default-src 'none'; script-src 'self'", "nosniff", "no-store"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(Served::status(served.get("/page.js")), 200);
  EXPECT_EQ(Served::status(served.get("/style.css")), 200);
  const auto list = nlohmann::json::parse(Served::body(served.get("/api/runs")));
  ASSERT_EQ(list["runs"].size(), 1u);
  EXPECT_EQ(list["runs"][0]["name"], "first");
  const std::string query = "/api/metrics?keys=0&generation=1&run=" + list["runs"][0]["id"].get<std::string>();
  auto answer = nlohmann::json::parse(Served::body(served.get(query)));
  EXPECT_EQ(answer["points"]["0"]["y"], (std::vector<double>{2.5, 1.5}));
  std::ofstream(runs_ / "first/metrics.jsonl", std::ios::app) << "{\"step\":3,\"train/loss\":0.5}\n";
  answer = nlohmann::json::parse(Served::body(served.get(query)));
  EXPECT_EQ(answer["points"]["0"]["y"], (std::vector<double>{2.5, 1.5, 0.5}));
  EXPECT_EQ(Served::status(served.get(query + "&have=" + answer["version"].get<std::string>())), 204);
  EXPECT_EQ(Served::status(served.get(query + "&columns=x")), 400);
  EXPECT_EQ(Served::status(served.get(query + "&from=1e9")), 400);
  const std::string details = served.get("/api/details?run=" + list["runs"][0]["id"].get<std::string>());
  EXPECT_NE(details.find("step 2"), std::string::npos);
  EXPECT_EQ(details.find("do not show"), std::string::npos);
  EXPECT_EQ(served.stop(), 0);
}

TEST_F(Dashboard, HostileRequestsAreHarmless) {
  Served served({runs_.string(), "--port", "0"});
  ASSERT_GT(served.port, 0) << served.url;
  for (const char* path :
       {"/../secret.txt", "/..%2fsecret.txt", "/%2e%2e/secret.txt", "//etc/passwd", "/etc/passwd", "/api", "/api/runs/",
        "/api/files?run=first", "/api/metrics", "/api/metrics?run=first", "/api/metrics?run=../", "/page.js/../../x",
        "/api/details?run=%2e%2e", "/api/details?run=first%00", "/first/metrics.jsonl", "/runs/first/config.json",
        "/<script>alert(1)</script>", "/%3Cscript%3E", "/api/metrics?run=%ff%fe"}) {
    const std::string answer = served.get(path);
    EXPECT_EQ(Served::status(answer), 404) << path;
    EXPECT_EQ(answer.find("do not show"), std::string::npos) << path;
    EXPECT_EQ(answer.find("<script"), std::string::npos) << path;
  }
  for (const char* host : {"Host: evil.example\r\n", "Host: localhost.evil.example:80\r\n", "", "Host:\r\n",
                           "Host: localhost\r\nHost: evil.example\r\n", "Host: 10.0.0.1\r\n"}) {
    const std::string answer = served.get("/api/runs", host);
    EXPECT_EQ(Served::status(answer), 403) << host;
    EXPECT_EQ(answer.find("first"), std::string::npos) << host;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    const std::string bytes =
        std::string(method) +
        " /api/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(Served::status(served.ask(bytes)), 405) << method;
  }
  // No request: any refusal, or none.
  for (const std::string& bytes :
       {std::string("\0\1\2\r\n\r\n", 7), std::string("GET\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        "GET /" + std::string(100000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(100000, 'a') + "\r\n\r\n",
        std::string("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"),
        std::string("GET /api/runs HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-0,0-0,0-0,5-1\r\nConnection: "
                    "close\r\n\r\n")}) {
    served.ask(bytes, /*end=*/true);
  }
  EXPECT_EQ(Served::status(served.get("/")), 200);
}

TEST_F(Dashboard, OtherAddressesNeedTheToken) {
  Served served({runs_.string(), "--port", "0", "--listen", "0.0.0.0"});
  const size_t at = served.url.find("/?token=");
  ASSERT_NE(at, std::string::npos) << served.url;
  const std::string token = served.url.substr(at + 8);
  served.port = std::atoi(served.url.c_str() + served.url.rfind(':', at) + 1);
  EXPECT_EQ(token.size(), 32u);
  for (const std::string& wrong :
       {std::string(), std::string("?token="), "?token=" + token.substr(1), "?token=" + token + "0"}) {
    EXPECT_EQ(Served::status(served.get("/" + wrong)), 401) << wrong;
    EXPECT_EQ(Served::status(served.get("/api/runs" + wrong)), 401) << wrong;
  }
  EXPECT_EQ(Served::status(served.get("/?token=" + token)), 200);
  EXPECT_EQ(Served::status(served.get("/api/runs", "Host: localhost\r\nX-Token: " + token + "\r\n")), 200);
  EXPECT_EQ(Served::status(served.get("/api/runs", "Host: evil.example\r\nX-Token: " + token + "\r\n")), 403);
}

TEST_F(Dashboard, ExportsOneFileAndRefusesBadInput) {
  const std::string file = (dir_ / "page.html").string();
  const Result result = run({"dashboard", runs_.string(), "--export", file});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, file + "\n");
  const std::string page = test::read(file);
  EXPECT_NE(page.find("\"y\":[2.5,1.5]"), std::string::npos);
  EXPECT_EQ(page.find("do not show"), std::string::npos);
  fs::create_directory(dir_ / "empty");
  expect_refusal(ExitCode::data, {"dashboard", (dir_ / "empty").string(), "--export", file}, {"no run below", "empty"});
  expect_refusal(ExitCode::data, {"dashboard", (dir_ / "none").string()}, {"none", "folder of runs"});
  expect_refusal(ExitCode::usage, {"dashboard", runs_.string(), "--listen", "example.org"}, {"--listen", "IP address"});
  expect_refusal(ExitCode::usage, {"dashboard", runs_.string(), "--port", "70000"}, {"--port", "70000"});
  expect_refusal(ExitCode::usage, {"dashboard", runs_.string(), "--port", "1", "--export", file}, {"--export"});
  expect_refusal(ExitCode::environment, {"dashboard", runs_.string(), "--export", (dir_ / "no/x.html").string()},
                 {"no"});
  Served served({runs_.string(), "--port", "0"});
  expect_refusal(ExitCode::environment, {"dashboard", runs_.string(), "--port", std::to_string(served.port)},
                 {"cannot listen on 127.0.0.1", "--port"});
}

}  // namespace
}  // namespace hrm
