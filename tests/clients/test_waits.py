"""Waits for room in the daemon's queue beside threads, forks and signals, in languages without tests of their own.

`test_datagrams.py` has the tests that all languages share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from support.client_programs import build, param, run_tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

C: Final = r"""
#include <bruce.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static bruce_datagram *client;
static volatile sig_atomic_t signals;

static void on_signal(int number) { signals += number == SIGUSR1; }
static void *wait_long(void *result) { return *(int *)result = bruce_datagram_wait(client, -1), NULL; }

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct sigaction action = {.sa_handler = on_signal};
    bruce_message message = {.topic = "t", .value = "v", .value_size = 1};
    int daemon = socket(AF_UNIX, SOCK_DGRAM, 0), results[2] = {-1, -1}, refused = 0, status;
    pthread_t threads[2];
    char buffer[100];

    strcpy(address.sun_path, argv[argc - 1]);
    bind(daemon, (struct sockaddr *)&address, sizeof address);
    sigaction(SIGUSR1, &action, NULL);
    bruce_datagram_open(&client, argv[argc - 1], NULL);
    while (bruce_datagram_send(client, &message) == BRUCE_OK)
        ;
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, wait_long, &results[i]);
    pid_t child = fork();
    if (child == 0)
        _exit(bruce_datagram_wait(client, 10000));
    for (int i = 0; i < 10; i++) {
        usleep(20000);
        pthread_kill(threads[0], SIGUSR1);
        refused += bruce_datagram_send(client, &message) == EAGAIN;
    }
    printf("%d %d %d %d ", refused, signals > 0, results[0], results[1]);
    while (recv(daemon, buffer, sizeof buffer, MSG_DONTWAIT) >= 0)
        ;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    waitpid(child, &status, 0);
    printf("%d %d %d\n", results[0], results[1], status);
}
"""
RUBY: Final = """
require './bruce'
daemon = Socket.new(:UNIX, :DGRAM)
daemon.bind(Socket.sockaddr_un(ARGV[0]))
client = Bruce::DatagramClient.new(ARGV[0])
waits = lambda do
  nil while client.send('t', 'v')
  threads = Array.new(2) { Thread.new { client.wait(timeout: 10) rescue $!.class } }
  Thread.pass until threads.all?(&:stop?)
  threads
end
threads = waits.call
is_known = client.last_error == Errno::EAGAIN::Errno
child = fork { exit!(client.wait(timeout: 10) ? 0 : 1) }
began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
sent = Array.new(10) { sleep(0.001) && client.send('t', 'v') } # in the pauses, the waits go on
is_prompt = Process.clock_gettime(Process::CLOCK_MONOTONIC) - began < 3
is_waiting = threads.all?(&:alive?)
nil while daemon.recv_nonblock(100, exception: false) != :wait_readable
puts [is_known, sent.none?, is_prompt, is_waiting, *threads.map(&:value), Process.wait2(child)[1].success?].join(' ')
threads = waits.call
client.close
puts threads.map(&:value).join(' ')
"""
PHP: Final = """
require 'Bruce.php';
$daemon = socket_create(AF_UNIX, SOCK_DGRAM, 0);
socket_bind($daemon, $argv[1]);
$client = new Bruce\\DatagramClient($argv[1]);
while ($client->send(new Bruce\\Message('t', 'v')));
echo json_encode($client->lastError() === SOCKET_EAGAIN), ' ';
$child = pcntl_fork();
if ($child === 0) {
    exit($client->wait(10) ? 0 : 1);
}
$signals = 0;
pcntl_async_signals(true);
pcntl_signal(SIGALRM, function () use (&$signals) { $signals++; });
pcntl_alarm(1);
$began = hrtime(true);
echo json_encode($client->wait(1.5)), ' ', $signals, ' ', json_encode(hrtime(true) - $began >= 1.5e9);
while (socket_recv($daemon, $message, 100, MSG_DONTWAIT));
pcntl_waitpid($child, $status);
echo " $status";
"""


def test_threads_and_a_child_wait_while_signals_arrive(tmp_path: Path) -> None:
    build("c")
    (tmp_path / "waits.c").write_text(C)
    compile_it = ("cc", "-Iinclude", "-pthread", "-o", str(tmp_path / "waits"), str(tmp_path / "waits.c"))
    run_tool("c", (*compile_it, "build/libbruce.a"))
    assert run_tool("c", (str(tmp_path / "waits"), str(tmp_path / "in"))).split() == ["10", "1", "-1", "-1", *"000"]


@pytest.mark.parametrize("name", [param("ruby")])
def test_threads_and_a_child_wait_while_a_thread_sends_and_closes(name: str, tmp_path: Path) -> None:
    build(name)
    said = run_tool(name, ("ruby", "-e", RUBY, "--", str(tmp_path / "in")))
    assert said.splitlines() == ["true true true true true true true", "IOError IOError"]


@pytest.mark.parametrize("name", [param("php")])
def test_a_wait_goes_on_after_a_signal_and_in_a_child(name: str, tmp_path: Path) -> None:
    build(name)
    assert run_tool(name, ("php", "-r", PHP, "--", str(tmp_path / "in"))).split() == ["true", "false", "1", "true", "0"]
