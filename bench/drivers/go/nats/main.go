// Sends and receives schedules of a NATS stream.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sendlater.test/bench/lines"
)

const openMax = 4096

func main() {
	connection, err := nats.Connect(os.Getenv("BENCH_URL"))
	check(err)
	js, err := jetstream.New(connection,
		jetstream.WithPublishAsyncMaxPending(openMax),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { log.Fatal(err) }))
	check(err)
	name := os.Getenv("BENCH_NAME")
	stream, err := js.CreateOrUpdateStream(context.Background(), jetstream.StreamConfig{
		Name:              name,
		Subjects:          []string{name + ".schedule.*", name + ".due"},
		Storage:           jetstream.FileStorage,
		AllowMsgSchedules: true,
		AllowRollup:       true,
		MaxMsgs:           -1,
		Replicas:          1,
	})
	check(err)
	if os.Args[1] == "send" {
		send(js, stream, name)
	} else {
		receive(stream, name)
	}
}

func send(js jetstream.JetStream, stream jetstream.Stream, name string) {
	flush := func() { <-js.PublishAsyncComplete() }
	lines.Orders(func(order lines.Order) {
		subject := fmt.Sprintf("%s.schedule.%d", name, order.Number)
		if order.Verb == 'c' {
			flush()
			check(stream.Purge(context.Background(), jetstream.WithPurgeSubject(subject)))
			return
		}
		_, err := js.PublishMsgAsync(&nats.Msg{
			Subject: subject,
			Header: nats.Header{
				"Nats-Schedule":        {"@at " + order.Due.UTC().Format(time.RFC3339Nano)},
				"Nats-Schedule-Target": {name + ".due"},
			},
			Data: lines.Payload(order.Number),
		})
		check(err)
	}, flush)
}

func receive(stream jetstream.Stream, name string) {
	consumer, err := stream.OrderedConsumer(context.Background(), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{name + ".due"},
		DeliverPolicy:  jetstream.DeliverAllPolicy, // what came before a restarted receiver, too
	})
	check(err)
	arrivals := lines.Open()
	_, err = consumer.Consume(func(message jetstream.Msg) { arrivals.Note(message.Data()) })
	check(err)
	arrivals.UntilEnd()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
