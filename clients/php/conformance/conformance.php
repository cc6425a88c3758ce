<?php

/** The conformance program, see clients/conformance/README.md. */

declare(strict_types=1);

require __DIR__ . '/../Bruce.php';

use Bruce\DatagramClient;
use Bruce\FlushError;
use Bruce\Message;
use Bruce\MessageError;
use Bruce\PartitionKey;
use Bruce\StreamClient;

final class Program
{
    private ?DatagramClient $datagrams = null;
    private ?StreamClient $stream = null;

    /** @param list<string> $f */
    public function run(array $f): string
    {
        switch ($f[0]) {
            case 'encode':
                return $this->encode($f);
            case 'hash':
                return 'ok ' . PartitionKey::{$f[1]}(self::bytes($f[2]));
            case 'datagram':
                $this->datagrams = new DatagramClient($f[1]);
                return 'ok';
            case 'datagram-send':
                return 'ok ' . $this->sendDatagrams($f[1], (int) $f[2], (int) $f[3], (int) $f[4], (int) $f[5]);
            case 'datagram-wait':
                return 'ok ' . (int) $this->datagrams->wait((int) $f[1] / 1000);
            case 'datagram-stats':
                $s = $this->datagrams->stats();
                $refused = array_sum($s['refused']);
                return "ok {$s['sent']} {$s['sent_bytes']} $refused " . self::pairs($s['refused']);
            case 'stream':
                $this->stream = new StreamClient($f[1][0] === '/' ? $f[1] : (int) $f[1], (int) $f[2]);
                return 'ok';
            case 'stream-send':
                return 'ok ' . $this->sendStream($f[1], (int) $f[2], (int) $f[3], (int) $f[4]);
            case 'stream-flush':
                return $this->flush($f[1], (int) $f[2] / 1000);
            case 'stream-stats':
                return 'ok ' . implode(' ', $this->stream->stats());
            case 'stream-close':
                $this->stream->close((int) $f[1] / 1000);
                return 'ok';
            case 'fork':
                return $this->fork($f[1], (int) $f[2], (int) $f[3]);
        }
        return 'unsupported';
    }

    private static function bytes(string $word): ?string
    {
        return $word === '-' ? null : hex2bin(substr($word, 1));
    }

    /** @param array<int|string, int> $counts */
    private static function pairs(array $counts): string
    {
        $words = array_map(fn ($name, $count) => "$name=$count", array_keys($counts), $counts);
        return implode(',', $words) ?: '-';
    }

    /** @param list<string> $f */
    private function encode(array $f): string
    {
        $headers = [];
        foreach ($f[7] === '-' ? [] : explode(',', $f[7]) as $pair) {
            [$name, $value] = explode(':', $pair);
            $headers[] = [hex2bin($name), $value === '-' ? null : hex2bin($value)];
        }
        try {
            $message = new Message(
                self::bytes($f[1]),
                self::bytes($f[3]),
                self::bytes($f[2]),
                $f[5] === '.' ? null : (int) $f[5],
                $f[4] === '.' ? null : (int) $f[4],
                $headers,
                $f[6] === '1',
            );
            return 'ok ' . bin2hex($message->encode());
        } catch (MessageError $error) {
            return "error $error->reason";
        }
    }

    private static function numbered(string $topic, int $number, int $size): Message
    {
        return new Message($topic, str_pad(sprintf('%012d', $number), $size, 'x'));
    }

    private function sendDatagrams(string $topic, int $first, int $count, int $size, int $pauseUs): int
    {
        $sent = 0;
        for ($number = $first; $number < $first + $count; $number++) {
            $sent += (int) $this->datagrams->send(self::numbered($topic, $number, $size));
            usleep($pauseUs);
        }
        return $sent;
    }

    private function sendStream(string $topic, int $first, int $count, int $size): int
    {
        $accepted = 0;
        for ($number = $first; $number < $first + $count; $number++) {
            $accepted += (int) $this->stream->send(self::numbered($topic, $number, $size));
        }
        return $accepted;
    }

    private function flush(string $level, float $timeout): string
    {
        try {
            $outcome = $this->stream->flush($timeout, $level);
        } catch (FlushError $error) {
            return "error $error->reason $error->uncertain";
        }
        $reasons = self::pairs($outcome->reasons);
        return "ok $outcome->received $outcome->delivered $outcome->discarded $reasons";
    }

    private function fork(string $topic, int $first, int $count): string
    {
        $child = pcntl_fork();
        if ($child === 0) {
            $this->sendDatagrams($topic, $first, $count, 20, 1000);
            $this->sendStream($topic, $first + $count, $count, 20);
            $delivered = $this->stream->flush(20)->delivered;
            $counts = [$this->datagrams->stats()['sent'], $this->stream->stats()['sent'], $delivered];
            exit($counts === [$count, $count, $count] ? 0 : 1);
        }
        pcntl_waitpid($child, $status);
        return $status === 0 ? 'ok' : "error CHILD $status";
    }
}

$program = new Program();
while (($line = fgets(STDIN)) !== false) {
    echo $program->run(explode(' ', rtrim($line, "\n"))), "\n";
}
