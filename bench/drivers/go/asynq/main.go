// Sends and receives delayed tasks of asynq.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"sendlater.test/bench/lines"
)

const (
	senders     = 32
	openMax     = 256
	handlers    = 64
	checkEvery  = 10 * time.Millisecond
	taskTimeout = time.Minute
)

var queue = os.Getenv("BENCH_NAME")

func main() {
	server, err := asynq.ParseRedisURI(os.Getenv("BENCH_URL"))
	check(err)
	if os.Args[1] == "send" {
		send(server)
	} else {
		receive(server)
	}
}

// What concerns one message goes through one goroutine, so that it stays in order.
func send(server asynq.RedisConnOpt) {
	client, inspector := asynq.NewClient(server), asynq.NewInspector(server)
	var open sync.WaitGroup
	lanes := make([]chan lines.Order, senders)
	for lane := range lanes {
		orders := make(chan lines.Order, openMax)
		lanes[lane] = orders
		go func() {
			for order := range orders {
				carryOut(order, client, inspector)
				open.Done()
			}
		}()
	}
	lines.Orders(func(order lines.Order) {
		open.Add(1)
		lanes[uint64(order.Number)%senders] <- order
	}, open.Wait)
}

func carryOut(order lines.Order, client *asynq.Client, inspector *asynq.Inspector) {
	id := strconv.FormatInt(order.Number, 10)
	if order.Verb != 's' {
		err := inspector.DeleteTask(queue, id)
		if errors.Is(err, asynq.ErrTaskNotFound) {
			return // it has run
		}
		check(err)
	}
	if order.Verb != 'c' {
		_, err := client.Enqueue(asynq.NewTask("message", lines.Payload(order.Number)),
			asynq.Queue(queue), asynq.TaskID(id), asynq.ProcessAt(wholeSecond(order.Due)), asynq.Timeout(taskTimeout))
		check(err)
	}
}

// asynq keeps whole seconds and cuts the rest off; rounded up, a task is not early.
func wholeSecond(due time.Time) time.Time {
	return due.Add(time.Second - 1).Truncate(time.Second)
}

func receive(server asynq.RedisConnOpt) {
	arrivals := lines.Open()
	worker := asynq.NewServer(server, asynq.Config{
		Concurrency:              handlers,
		Queues:                   map[string]int{queue: 1},
		TaskCheckInterval:        checkEvery,
		DelayedTaskCheckInterval: checkEvery,
		LogLevel:                 asynq.WarnLevel,
	})
	check(worker.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		arrivals.Note(task.Payload())
		return nil
	})))
	arrivals.UntilEnd()
	worker.Shutdown()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
