#include "host/base/settings.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "host/base/log.h"
#include "host/base/os.h"

namespace gatun {
namespace {

using Source = Settings::Source;
const char* const kEmpty[] = {nullptr};

// A file that lives as long as the test case.
class TempFile {
 public:
  explicit TempFile(const std::string& text) {
    int fd = mkstemp(path_);
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    ::close(fd);
  }
  ~TempFile() { ::unlink(path_); }
  std::string path() const { return path_; }

 private:
  char path_[64] = "/tmp/gatun_settings_test_XXXXXX";
};

std::string file_error(const std::string& text) {
  TempFile file(text);
  Settings settings;
  Status status = settings.read_file(file.path());
  std::string message = status.message();
  size_t at = message.find(file.path());
  return at == message.npos ? message : message.replace(at, file.path().size(), "FILE");
}

}  // namespace

TEST_CASE("settings__defaults", "[settings]") {
  Settings settings;
  CHECK(settings.values().address == "127.0.0.1:7117");
  CHECK(settings.values().port == kDefaultPort);
  CHECK(settings.values().listen.empty());
  CHECK(settings.values().window == 0);
  CHECK(settings.values().payload_bytes == 0);
  CHECK(settings.values().timeout == 300 * kSecond);
  CHECK(settings.values().memory_bytes == uint64_t{256} << 20);
  CHECK(settings.origin("trees").where == "default");
  CHECK(Settings::table().size() <= 24);
}

TEST_CASE("settings__every_default_is_what_the_table_expects", "[settings]") {
  for (const Settings::Row& row : Settings::table()) {
    SettingValues values;
    INFO(row.key);
    CHECK(row.parse(row.preset, &values));
    CHECK_FALSE(row.parse("", &values));
    CHECK_FALSE(row.parse(std::string(300, 'x'), &values));
    CHECK(std::string(row.help).size() > 10);
  }
}

TEST_CASE("load__precedence_does_not_depend_on_order", "[settings]") {
  TempFile file("trees = 2\nwindow = \"16\"\njob = \"from file\"\n");
  std::string config = "GATUN_CONFIG=" + file.path();
  const char* environment[] = {"PATH=/bin", config.c_str(), "GATUN_TREES=3", "GATUN_JOB=from env", nullptr};
  std::vector<std::string> args = {"--trees", "4"};
  Settings settings;
  REQUIRE(settings.load(&args, environment).ok());
  CHECK(args.empty());
  CHECK(settings.values().trees == 4);
  CHECK(settings.values().job == "from env");
  CHECK(settings.values().window == 16);
  CHECK(settings.file() == file.path());
  CHECK(settings.origin("trees").where == "--trees");
  CHECK(settings.origin("job").where == "GATUN_JOB");
  CHECK(settings.origin("window").where == file.path() + ":2");

  // Weaker sources that come later change nothing, but are still checked.
  CHECK(settings.set("trees", "5", Source::kFile, "f:1").ok());
  CHECK(settings.values().trees == 4);
  CHECK_FALSE(settings.set("trees", "x", Source::kFile, "f:1").ok());
  CHECK(settings.set("trees", "6", Source::kFlag, "gatun_options_t.trees").ok());
  CHECK(settings.values().trees == 6);
}

TEST_CASE("load__names_a_file_that_is_not_there", "[settings]") {
  std::vector<std::string> args = {"--config=/nowhere/gatun.toml"};
  Settings settings;
  Status status = settings.load(&args, kEmpty);
  CHECK(status.code() == Code::kSystem);
  CHECK(std::string(status.message()) == "cannot read the settings file /nowhere/gatun.toml: No such file or directory");
}

TEST_CASE("take_flags__both_forms_and_foreign_arguments", "[settings]") {
  std::vector<std::string> args = {"-v", "--join-timeout=5s", "--other", "x", "--join_timeout", "6s", "--", "--trees", "2"};
  Settings settings;
  REQUIRE(settings.take_flags(&args).ok());
  CHECK(settings.values().join_timeout == 6 * kSecond);
  CHECK(settings.values().trees == 1);
  CHECK(args == std::vector<std::string>{"-v", "--other", "x", "--", "--trees", "2"});
}

TEST_CASE("take_flags__errors", "[settings]") {
  auto error = [](std::vector<std::string> args) {
    Settings settings;
    return std::string(settings.take_flags(&args).message());
  };
  CHECK(error({"--trees"}) == "--trees needs a value: a number from 1 to 16");
  CHECK(error({"--trees", "--window=2"}) == "--trees needs a value: a number from 1 to 16");
  CHECK(error({"--trees", "17"}) == "--trees is '17'; it must be a number from 1 to 16");
  CHECK(error({"--window=3"}) == "--window is '3'; it must be a power of two from 2 to 4096, or auto");
  CHECK(error({"--config"}) == "--config needs a value: the path of a settings file");
  CHECK(error({"--rendezvous=nonsense"}) == "--rendezvous is 'nonsense'; it must be host:port of rank 0");
  CHECK(error({"--job="}) == "--job is ''; it must be a name of 1 to 128 printable bytes");
}

TEST_CASE("read_file__errors_name_line_and_key", "[settings]") {
  CHECK(file_error("\n\ntress = 2\n") == "FILE:3: unknown setting 'tress'; the nearest is 'trees'");
  CHECK(file_error("zzzzzzzzzzz = 2\n") == "FILE:1: unknown setting 'zzzzzzzzzzz'");
  CHECK(file_error("# x\ntrees = 0\n") == "FILE:2: trees is '0'; it must be a number from 1 to 16");
  CHECK(file_error("timeout = 30\n") == "FILE:1: timeout is '30'; it must be a time such as 30s or 500ms, from 1ms to 720h");
  CHECK(file_error("trees = [1]\n") ==
        "FILE:1: trees is neither a string nor a whole number; it must be a number from 1 to 16");
  CHECK(file_error("[gatund]\ntrees = 1\n") == "FILE:1: there is a table 'gatund'; settings stand at the top level");
  CHECK(file_error("trees = 1\ntrees = 2\n").substr(0, 7) == "FILE:2:");
  CHECK(file_error("trees 1\n").substr(0, 7) == "FILE:1:");
  CHECK(file_error(std::string("\xff\xfe\0", 3)).substr(0, 7) == "FILE:1:");
  CHECK(file_error("").empty());
  Settings settings;
  CHECK_FALSE(settings.read_file("/tmp").ok());  // a folder
  CHECK(std::string(settings.read_file("/dev/zero").message()).find("more than 1 MiB") != std::string::npos);
}

TEST_CASE("read_environment__bad_value_is_an_error_unknown_name_a_warning", "[settings]") {
  Settings settings;
  const char* bad[] = {"GATUN_TIMEOUT=soon", nullptr};
  CHECK(std::string(settings.read_environment(bad).message()) ==
        "GATUN_TIMEOUT is 'soon'; it must be a time such as 30s or 500ms, from 1ms to 720h");
  const char* near[] = {"GATUN_WINDWO=3", "GATUN_SOMETHING_ELSE=1", "GATUN_", "GATUNX=1", nullptr};
  REQUIRE(settings.read_environment(near).ok());
  REQUIRE(settings.warnings().size() == 1);
  CHECK(settings.warnings()[0] == "the variable GATUN_WINDWO is no setting; did you mean GATUN_WINDOW?");
}

TEST_CASE("sample_file__uncommented_is_valid_and_changes_nothing", "[settings]") {
  std::string text = Settings::sample_file(), active;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    std::string line = text.substr(at, end - at);
    bool setting = line.find(" = \"") != line.npos;
    active += (setting ? line.substr(2) : line) + "\n";
    at = end + 1;
  }
  TempFile file(active);
  Settings settings;
  Status status = settings.read_file(file.path());
  INFO(status.message());
  CHECK(status.ok());
  CHECK(settings.origin("rto_min").where.find(file.path()) == 0);
}

TEST_CASE("help__names_every_setting", "[settings]") {
  std::string help = Settings::help(), described = Settings().describe();
  for (const Settings::Row& row : Settings::table()) {
    std::string flag = row.key;
    for (char& c : flag) c = c == '_' ? '-' : c;
    CHECK(help.find("--" + flag + " ") != help.npos);
    CHECK(described.find(row.key) != described.npos);
  }
}

TEST_CASE("parse_duration__units_and_limits", "[settings]") {
  TimeNs t = -1;
  CHECK((parse_duration("30s", &t) && t == 30 * kSecond));
  CHECK((parse_duration("500ms", &t) && t == 500 * kMs));
  CHECK((parse_duration("2m", &t) && t == 120 * kSecond));
  CHECK((parse_duration("0", &t) && t == 0));
  for (const char* text : {"", "s", "30", "-1s", "1.5s", "30 s", "1d", "9999999999999999s", "99999999999999999999s"}) {
    INFO(text);
    CHECK_FALSE(parse_duration(text, &t));
  }
  CHECK(format_duration(1500 * kMs) == "1500ms");
  CHECK(format_duration(300 * kSecond) == "5m");
}

TEST_CASE("parse_bytes__units_and_limits", "[settings]") {
  uint64_t b = 0;
  CHECK((parse_bytes("256M", &b) && b == uint64_t{256} << 20));
  CHECK((parse_bytes("1408", &b) && b == 1408));
  for (const char* text : {"", "M", "1T", "-1", "99999999999G", "0x10"}) CHECK_FALSE(parse_bytes(text, &b));
  CHECK(format_bytes(1408) == "1408");
  CHECK(format_bytes(uint64_t{1} << 30) == "1G");
}

TEST_CASE("log__prefix_levels_and_long_lines", "[log]") {
  int pipe_fds[2];
  REQUIRE(::pipe(pipe_fds) == 0);
  Log log("gatun[3]", LogLevel::kWarn, pipe_fds[1]);
  log.warn("late: %d", 7);
  log.info("not shown");
  log.error("%s", std::string(5000, 'x').c_str());
  ::close(pipe_fds[1]);
  std::string text(9000, '\0');
  ssize_t size = ::read(pipe_fds[0], text.data(), text.size());
  ::close(pipe_fds[0]);
  REQUIRE(size > 0);
  text.resize(static_cast<size_t>(size));
  CHECK(text.substr(0, text.find('\n')) == "gatun[3]: warning: late: 7");
  CHECK(text.find("not shown") == text.npos);
  CHECK(text.find("error: xxx") != text.npos);
  CHECK(text.back() == '\n');
  CHECK(text.size() < 2100);
}

TEST_CASE("split_address__forms", "[os]") {
  std::string host;
  uint16_t port = 0;
  auto good = [&](const char* text) {
    return split_address(text, 7117, &host, &port).ok() ? host + " " + std::to_string(port) : "error";
  };
  CHECK(good("node1") == "node1 7117");
  CHECK(good("node1:80") == "node1 80");
  CHECK(good("::1") == "::1 7117");
  CHECK(good("[::1]:90") == "::1 90");
  CHECK(good("[::1]") == "::1 7117");
  for (const char* text : {"", ":80", "a:", "a:0", "a:65536", "a:8x", "[::1", "[::1]80", "[]", "[]:5"}) {
    INFO(text);
    CHECK_FALSE(split_address(text, 7117, &host, &port).ok());
  }
}

TEST_CASE("resolve__loopback", "[os]") {
  auto found = resolve("127.0.0.1:5", 1);
  REQUIRE(found.ok());
  CHECK(found.value()[0].text() == "127.0.0.1:5");
  CHECK(found.value()[0].loopback());
  auto v6 = resolve("[2001:db8::1]", 9);
  REQUIRE(v6.ok());
  CHECK(v6.value()[0].text() == "[2001:db8::1]:9");
  CHECK_FALSE(v6.value()[0].loopback());
  CHECK_FALSE(resolve("a b c", 1).ok());
}

TEST_CASE("host_identity__is_stable", "[os]") {
  CHECK_FALSE(host_identity().empty());
  CHECK(host_identity() == host_identity());
  CHECK(random_u64() != random_u64());
}

}  // namespace gatun
