// Package lines speaks the lines of the bench: orders come in, arrivals go out.
package lines

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	payloadBytes = 100
	numberBytes  = 16
	flushEvery   = 20 * time.Millisecond
)

// Order is one line to a sender; Verb is s, m, c or f.
type Order struct {
	Verb   byte
	Number int64
	Due    time.Time
}

// Orders says ready, and calls give for every line of the input; flush waits until all is accepted.
func Orders(give func(Order), flush func()) {
	fmt.Println("ready")
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		line := input.Text()
		if line == "f" {
			flush()
			fmt.Println("flushed")
			continue
		}
		var verb string
		var number, dueMs int64
		if _, err := fmt.Sscan(line, &verb, &number, &dueMs); err != nil {
			log.Fatalf("expected VERB NUMBER DUE_MS, got %q", line)
		}
		give(Order{verb[0], number, time.UnixMilli(dueMs)})
	}
	flush()
}

// Payload is the number, and filling up to the size that all systems send.
func Payload(number int64) []byte {
	return []byte(fmt.Sprintf("%-*d", numberBytes, number) + strings.Repeat("x", payloadBytes-numberBytes))
}

// Arrivals is the receiver's file. Safe for many goroutines.
type Arrivals struct {
	mutex sync.Mutex
	file  *bufio.Writer
}

// Open opens the receiver's file and says ready in it.
func Open() *Arrivals {
	file, err := os.OpenFile(os.Getenv("BENCH_ARRIVALS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	arrivals := &Arrivals{file: bufio.NewWriter(file)}
	fmt.Fprintln(arrivals.file, "ready")
	go func() {
		for range time.Tick(flushEvery) {
			arrivals.flush()
		}
	}()
	return arrivals
}

// Note writes down that a payload has arrived now.
func (arrivals *Arrivals) Note(payload []byte) {
	now := time.Now().UnixMilli()
	number := strings.TrimRight(string(payload[:numberBytes]), " ")
	arrivals.mutex.Lock()
	defer arrivals.mutex.Unlock()
	fmt.Fprintln(arrivals.file, number, now)
}

// UntilEnd waits for the signal to end.
func (arrivals *Arrivals) UntilEnd() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
	arrivals.flush()
}

func (arrivals *Arrivals) flush() {
	arrivals.mutex.Lock()
	defer arrivals.mutex.Unlock()
	if err := arrivals.file.Flush(); err != nil {
		log.Fatal(err)
	}
}
