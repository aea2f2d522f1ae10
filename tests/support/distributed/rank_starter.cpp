#include "tests/support/distributed/rank_starter.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/rank_messages.h"

namespace shard::test {
namespace {

constexpr std::size_t kMostBytes = 1 << 17;  // The largest request; a socket's buffer is larger.
constexpr std::size_t kDescriptors = 4;      // Standard output, standard error, the folder, the rank's socket.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kCanFork = false;
#else
constexpr bool kCanFork = true;
#endif

struct Starter {
  int socket = -1;
  std::vector<std::string> environment{};
};

Starter& starter() {
  static Starter instance;
  return instance;
}

std::vector<std::string> environment_now() {
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  return variables;
}

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

/// A request: number of arguments, then arguments and variables, each ended by a zero.
struct RankRequest {
  std::vector<std::string> arguments{}, variables{};
  std::string socket_variable{};
  std::array<int, kDescriptors> descriptors{-1, -1, -1, -1};
};

std::string encode_request(const RankRequest& request) {
  std::string bytes = std::to_string(request.arguments.size()) + '\0' + request.socket_variable + '\0';
  for (const auto* const texts : {&request.arguments, &request.variables}) {
    for (const std::string& text : *texts) bytes += text + '\0';
  }
  return bytes;
}

RankRequest decode_request(std::string_view bytes) {
  std::vector<std::string> texts;
  for (; !bytes.empty(); bytes.remove_prefix(texts.back().size() + 1)) texts.emplace_back(bytes.data());
  const auto arguments = texts.begin() + 2, variables = arguments + std::stoi(texts[0]);
  return {{arguments, variables}, {variables, texts.end()}, texts[1]};
}

struct RequestFrame {
  std::vector<char> bytes = std::vector<char>(kMostBytes);
  std::array<char, CMSG_SPACE(kDescriptors * sizeof(int))> control{};
  iovec part{bytes.data(), bytes.size()};
  msghdr header{};

  RequestFrame() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
};

void send_request(int socket, const RankRequest& request) {
  RequestFrame frame;
  const std::string bytes = encode_request(request);
  frame.part = {const_cast<char*>(bytes.data()), bytes.size()};
  cmsghdr* const rights = CMSG_FIRSTHDR(&frame.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof request.descriptors);
  std::memcpy(CMSG_DATA(rights), request.descriptors.data(), sizeof request.descriptors);
  if (::sendmsg(socket, &frame.header, MSG_NOSIGNAL) < 0) fail("sendmsg to the starter of ranks");
}

/// Nothing if the parent is gone.
std::optional<RankRequest> receive_request(int socket) {
  RequestFrame frame;
  const ssize_t bytes = ::recvmsg(socket, &frame.header, MSG_CMSG_CLOEXEC);
  const cmsghdr* const rights = CMSG_FIRSTHDR(&frame.header);
  if (bytes <= 0 || rights == nullptr) return std::nullopt;
  RankRequest request = decode_request({frame.bytes.data(), static_cast<std::size_t>(bytes)});
  std::memcpy(request.descriptors.data(), CMSG_DATA(rights), sizeof request.descriptors);
  return request;
}

/// Makes this process, a grandchild of the starter, the rank of `request`. First waits until its parent, `until_gone`,
/// has ended, so that the test's process is its parent.
void become_requested(const RankRequest& request, pid_t until_gone, int& argc, char**& argv) {
  while (::getppid() == until_gone) ::sched_yield();
  ::dup2(request.descriptors[0], STDOUT_FILENO);
  ::dup2(request.descriptors[1], STDERR_FILENO);
  if (::fchdir(request.descriptors[2]) != 0) ::_exit(kTestErrorExitCode);
  const pid_t own = ::getpid();
  ::send(starter().socket, &own, sizeof own, MSG_NOSIGNAL);
  ::close(starter().socket);
  starter() = {};
  ::clearenv();
  static std::vector<std::string> arguments;  // main's for the rest of the process.
  static std::vector<char*> pointers;
  for (const std::string& each : request.variables) {
    const std::size_t equals = each.find('=');
    if (equals != std::string::npos) ::setenv(each.substr(0, equals).c_str(), each.substr(equals + 1).c_str(), 1);
  }
  ::setenv(request.socket_variable.c_str(), std::to_string(request.descriptors[3]).c_str(), 1);
  arguments = request.arguments;
  for (std::string& each : arguments) pointers.push_back(each.data());
  pointers.push_back(nullptr);
  argc = static_cast<int>(arguments.size());
  argv = pointers.data();
}

/// Serves until the parent is gone. Returns in ranks only.
void serve(int& argc, char**& argv) {
  while (const std::optional<RankRequest> request = receive_request(starter().socket)) {
    const pid_t between = ::fork();
    if (between == 0) {  // Ends at once, so that the rank becomes a child of the test's process.
      const pid_t own = ::getpid();
      if (::fork() != 0) ::_exit(0);
      return become_requested(*request, own, argc, argv);
    }
    ::waitpid(between, nullptr, 0);
    for (const int descriptor : request->descriptors) ::close(descriptor);
  }
  ::_exit(0);
}

}  // namespace

void start_rank_starter(int& argc, char**& argv) {
  if (!kCanFork || variable(kRankVariable)) return;
  std::array<int, 2> sockets;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0) fail("socketpair");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  ::close(sockets[child == 0 ? 0 : 1]);
  starter() = {sockets[child == 0 ? 1 : 0], environment_now()};
  if (child == 0) serve(argc, argv);
}

std::optional<pid_t> fork_rank(const std::vector<std::string>& arguments, const std::vector<std::string>& variables,
                               const char* socket_variable, int socket) {
  if (starter().socket < 0 || environment_now() != starter().environment) return std::nullopt;
  const int folder = ::open(".", O_PATH | O_CLOEXEC);
  if (folder < 0) fail("open of the current folder");
  const RankRequest request{arguments, variables, socket_variable, {STDOUT_FILENO, STDERR_FILENO, folder, socket}};
  if (encode_request(request).size() > kMostBytes) return ::close(folder), std::nullopt;
  send_request(starter().socket, request);
  ::close(folder);
  pid_t rank = 0;
  if (::recv(starter().socket, &rank, sizeof rank, 0) != sizeof rank) fail("recv from the starter of ranks");
  return rank;
}

}  // namespace shard::test
